#include "supervisor/machines.h"

#include <doctest/doctest.h>

#include "base/gpu_view.h"

using namespace hvd;

namespace {

Job job_on(const std::vector<std::string>& names) {
  Job job;
  for (const std::string& name : names) {
    Host host;
    host.name = host.address = name;
    job.hosts.push_back(host);
  }
  return job;
}

KnownMachine machine(uint32_t host, uint32_t gpus, const std::string& boot_id = "boot",
                     uint64_t network = 1) {
  KnownMachine known;
  known.host = host;
  known.hello.gpus = gpus;
  known.hello.boot_id = boot_id;
  known.hello.network = network;
  known.hello.cores = 8;
  return known;
}

}  // namespace

TEST_CASE("j4: what CUDA_VISIBLE_DEVICES leaves to see") {
  using View = std::vector<std::string>;
  CHECK(gpu_view(std::nullopt, 3) == View{"0", "1", "2"});
  CHECK(gpu_view("2,GPU-abc", 8) == View{"2", "GPU-abc"});
  CHECK(gpu_view(" 3 , MIG-1/2/3 ", 8) == View{"3", "MIG-1/2/3"});
  for (const char* none : {"", "-1", "NoDevFiles", "none", "void", ",1"}) {
    CHECK_MESSAGE(gpu_view(none, 8).empty(), none);
  }
  CHECK(gpu_view("0,-1,1", 8) == View{"0"});
  CHECK(joined_gpus({"2", "GPU-abc"}) == "2,GPU-abc");
}

TEST_CASE("j5: more ranks than GPUs") {
  Job job = job_on({"h1", "h2"});
  CHECK(gpu_shortage(job, machine(1, 2), 2).empty());
  CHECK(gpu_shortage(job, machine(1, 2), 3) ==
        "h2: 3 slots, 2 GPUs: two ranks would share one; --gpus-per-rank 0 hides the GPUs from the "
        "ranks, --oversubscribe lets them share");
  // A host without GPUs runs programs that need none.
  CHECK(gpu_shortage(job, machine(1, 0), 64).empty());
  job.oversubscribe = true;
  CHECK(gpu_shortage(job, machine(1, 2), 3).empty());
  job.gpus_per_rank = 2;
  CHECK(gpu_shortage(job, machine(1, 4), 2).empty());
  CHECK(gpu_shortage(job, machine(1, 3), 2) ==
        "h2: 2 ranks with 2 GPUs each do not fit its 3 GPUs");
  CHECK(gpu_shortage(job, machine(1, 0), 1) == "h2: 1 rank with 2 GPUs each do not fit its 0 GPUs");
  job.gpus_per_rank = 0;
  CHECK(gpu_shortage(job, machine(1, 1), 64).empty());
  // Of a plan, as far as it can be known without asking.
  job = Job();
  for (const char* name : {"a", "b", "c"}) job.hosts.emplace_back().name = name;
  for (Host& host : job.hosts) host.slots = 2;
  job.hosts[1].gpus = {"0"};
  const Placement placement = *place(job.hosts, 6);
  const std::string of_b = "b: 2 slots, 1 GPU: two ranks";
  CHECK(gpu_shortages(job, {}, placement).starts_with(of_b));
  CHECK(gpu_shortages(job, {{0, {}}}, placement).starts_with(of_b));
  const std::string both = gpu_shortages(job, {machine(2, 1)}, placement);
  CHECK(both.starts_with(of_b));
  CHECK(both.find("\nc: 2 slots, 1 GPU") != std::string::npos);
  job.hosts[1].gpus.clear();
  CHECK(gpu_shortages(job, {}, placement).empty());
  job.gpus_per_rank = 1;
  CHECK(gpu_shortages(job, {}, placement).empty());
}

TEST_CASE("j4: the view that is asked for is the one that counts") {
  Job job = job_on({"h1", "h2"});
  job.hosts[0].gpus = {"2", "GPU-abc"};
  CHECK(gpus_of(job, machine(0, 8)) == 2);
  CHECK(gpus_of(job, machine(1, 8)) == 8);
  job.hosts[1].env = {{"CUDA_VISIBLE_DEVICES", "1,2,3"}};
  CHECK(gpus_of(job, machine(1, 8)) == 3);
  job.set = {{"CUDA_VISIBLE_DEVICES", ""}};
  CHECK(gpus_of(job, machine(0, 8)) == 0);
  CHECK(gpus_of(job, machine(1, 8)) == 0);
}

TEST_CASE("a2, c5: one machine under several names") {
  const Job job = job_on({"h1", "a.h1", "h2", "b.h1", "h3"});
  CHECK(shared_machines(job, {machine(0, 0, "x", 1), machine(2, 0, "x", 2), machine(4, 0, "y", 1)})
            .empty());
  CHECK(shared_machines(job, {machine(0, 0, "x", 1), machine(1, 0, "x", 1), machine(2, 0, "y", 1),
                              machine(3, 0, "x", 1)}) ==
        std::vector<std::string>{
            "h1, a.h1 and b.h1 are one machine: their ranks share its cores and GPUs"});
  std::vector<KnownMachine> many;
  for (uint32_t host = 0; host < 5; ++host) many.push_back(machine(host, 0));
  CHECK(shared_machines(job, many)[0].starts_with("h1, a.h1, h2 and 2 more are one machine"));
  // What could not be read proves nothing.
  CHECK(shared_machines(job, {machine(0, 0, "", 1), machine(1, 0, "", 1)}).empty());
  CHECK(shared_machines(job, {machine(0, 0, "x", 0), machine(1, 0, "x", 0)}).empty());
}

TEST_CASE("what is unknown of two machines does not make them one") {
  CHECK(same_machine(machine(0, 0).hello, machine(1, 0).hello));
  CHECK_FALSE(same_machine(machine(0, 0, "").hello, machine(1, 0, "").hello));
  CHECK_FALSE(same_machine(machine(0, 0, "x", 0).hello, machine(1, 0, "x", 0).hello));
}

TEST_CASE("j7: the threads a rank is given are told, unless the user set them") {
  Job job = job_on({"h1", "h2", "h3"});
  const Placement placement = {{0, 0, {{0, 0, 0, 1}, {1, 1, 0, 1}}}, {1, 1, {{2, 0, 0, 1}}}};
  const std::vector<KnownMachine> machines = {machine(0, 0), machine(1, 0, "other")};
  CHECK(thread_shares(job, machines, placement) == "4 on h1; 8 on h2");
  // Two names of one machine share its cores.
  CHECK(thread_shares(job, {machine(0, 0, "x", 1), machine(1, 0, "x", 1)}, placement) ==
        "2 on h1, h2");
  job.hosts[0].env = {{"OMP_NUM_THREADS", "3"}};
  CHECK(thread_shares(job, machines, placement) == "8 on h2");
  job.forwarded = {{"OMP_NUM_THREADS", "1"}};
  CHECK(thread_shares(job, machines, placement).empty());
}

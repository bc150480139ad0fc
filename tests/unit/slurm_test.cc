#include "launcher/slurm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace hvd;

namespace {

// The hosts as "name:slots", or the error.
std::string hosts(const Variables& environment) {
  const auto hosts = slurm_hosts(environment);
  if (!hosts) return hosts.error().text;
  std::string out;
  for (const Host& host : *hosts) {
    out += (out.empty() ? "" : " ") + host.name + ":" +
           (host.slots_auto ? "auto" : std::to_string(host.slots));
  }
  return out;
}

std::string nodes(const std::string& list) {
  return hosts({{"SLURM_JOB_NODELIST", list}});
}

std::string counts(const std::string& text, size_t nodes) {
  const auto counts = parse_slurm_counts(text, nodes);
  if (!counts) return counts.error().text;
  std::string out;
  for (const uint32_t count : *counts) out += (out.empty() ? "" : " ") + std::to_string(count);
  return out;
}

}  // namespace

TEST_CASE("the nodes of an allocation in Slurm's own grammar") {
  CHECK(nodes("n1") == "n1:auto");
  CHECK(nodes("n[1-3,7],login") == "n1:auto n2:auto n3:auto n7:auto login:auto");
  CHECK(nodes("gpu-[008-010]") == "gpu-008:auto gpu-009:auto gpu-010:auto");
  CHECK(nodes("r[1-2]n[1-2]-ib") == "r1n1-ib:auto r1n2-ib:auto r2n1-ib:auto r2n2-ib:auto");
  CHECK(hosts({{"SLURM_NODELIST", "a,b"}}) == "a:auto b:auto");
  CHECK(hosts({{"SLURM_JOB_NODELIST", "a"}, {"SLURM_NODELIST", "b"}}) == "a:auto");
  for (const char* list : {"n[1-", "n[3-1]", "n[1-99999999]", "n[a]", "a b", "-w", ",", "a;b"}) {
    CAPTURE(list);
    CHECK(nodes(list).starts_with("SLURM_JOB_NODELIST"));
  }
}

TEST_CASE("counts of a node are told once for all that have them") {
  CHECK(counts("2", 1) == "2");
  CHECK(counts("2(x3),1", 4) == "2 2 2 1");
  CHECK(counts("4(x4294967295)", 2) == "4 4");
  CHECK(counts("4,3(x2),7", 2) == "4 3");
  CHECK(counts("16(x2),8", 9) == "16 16 8");
  for (const char* text : {"", "x", "2(x", "2(x)", "2(x2", "2(3)", "-1", "2,,1", "0", "70000"}) {
    CAPTURE(text);
    CHECK(counts(text, 3).starts_with("counts such as"));
  }
}

TEST_CASE("slots are tasks if tasks were asked for, else GPUs, else CPUs") {
  Variables job = {{"SLURM_JOB_NODELIST", "n[1-3]"},
                   {"SLURM_TASKS_PER_NODE", "2(x2),1"},
                   {"SLURM_JOB_CPUS_PER_NODE", "16(x3)"}};
  CHECK(hosts(job) == "n1:16 n2:16 n3:16");
  job.emplace_back("SLURM_CPUS_PER_TASK", "4");
  CHECK(hosts(job) == "n1:4 n2:4 n3:4");
  job.emplace_back("SLURM_GPUS_PER_NODE", "a100:4,h100:1");
  CHECK(hosts(job) == "n1:5 n2:5 n3:5");
  job.emplace_back("SLURM_NTASKS", "5");
  CHECK(hosts(job) == "n1:2 n2:2 n3:1");
  CHECK(hosts({{"SLURM_JOB_NODELIST", "n1"}, {"SLURM_TASKS_PER_NODE", "3"}}) == "n1:3");
  CHECK(hosts({{"SLURM_JOB_NODELIST", "n1"}, {"SLURM_GPUS_PER_NODE", "many"}}) ==
        "SLURM_GPUS_PER_NODE is 'many': expected a number of GPUs such as 4 or a100:4");
  CHECK(hosts({{"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_TASKS_PER_NODE", "2(x2)"}}) ==
        "Slurm counts 2 of the 3 nodes in 'n[1-3]'");
}

TEST_CASE("in a step the counts of tasks are not the job's, and one launcher is enough") {
  Variables job = {
      {"SLURM_JOB_NODELIST", "n[1-2]"},     {"SLURM_TASKS_PER_NODE", "1"}, {"SLURM_NTASKS", "1"},
      {"SLURM_JOB_CPUS_PER_NODE", "8(x2)"}, {"SLURM_CPUS_PER_TASK", "4"},  {"SLURM_STEP_ID", "0"},
      {"SLURM_STEP_NUM_TASKS", "1"}};
  CHECK(hosts(job) == "n1:2 n2:2");
  job.back().second = "4";
  CHECK(hosts(job).starts_with("srun starts hvdlaunch '4' times"));
}

TEST_CASE("an allocation is a number and nodes") {
  CHECK(*slurm_job({}) == "");
  CHECK(*slurm_job({{"SLURM_JOB_ID", "17"}}) == "");
  CHECK(*slurm_job({{"SLURM_JOB_NODELIST", "a"}}) == "");
  CHECK(*slurm_job({{"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NODELIST", "a"}}) == "17");
  CHECK(*slurm_job({{"SLURM_JOBID", "18"}, {"SLURM_NODELIST", "a"}}) == "18");
  CHECK_FALSE(slurm_job({{"SLURM_JOB_ID", "--x"}, {"SLURM_JOB_NODELIST", "a"}}).ok());
}

TEST_CASE("srun is told all it does, and sees no option that was set for others") {
  Host host;
  host.name = "n1";
  const auto argv = srun_argv("17", host);
  CHECK(argv[0] == "srun");
  for (const char* word : {"--jobid=17", "--nodelist=n1", "--overlap", "--unbuffered"}) {
    CHECK(std::find(argv.begin(), argv.end(), word) != argv.end());
  }
  for (const char* name : {"PATH", "SLURM_CONF", "SLURM_JWT", "SLURMX"}) CHECK(srun_sees(name));
  for (const char* name :
       {"SLURM_CPU_BIND", "SLURM_NTASKS", "SRUN_CPUS_PER_TASK", "SLURM_LABELIO"}) {
    CHECK_FALSE(srun_sees(name));
  }
}

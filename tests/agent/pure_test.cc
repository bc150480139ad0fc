// The parts without a process: environment, lease, notifications, the reserved port.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/machine.h"
#include "base/variables.h"
#include "supervisor/agent/binding.h"
#include "supervisor/agent/environment.h"
#include "supervisor/agent/lease.h"
#include "supervisor/agent/notify_socket.h"
#include "supervisor/agent/pulse.h"
#include "supervisor/agent/reserved_port.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

struct Case {
  StartAttempt start;
  WorkerSurroundings around;

  Case() {
    start.attempt = 3;
    start.size = 8;
    start.host_rank = 1;
    start.host_count = 2;
    start.previous_size = 8;
    start.max_restarts = 10;
    for (uint32_t i = 0; i < 4; ++i) start.places.push_back({4 + i, i, 1, 2});
    start.master_address = "10.0.0.1";
    start.master_port = 4321;
    around.job = "job-1";
    around.host_name = "node-b";
    around.cores = 10;
    around.workdir = "/data";
    around.agent_socket = "/tmp/x/agent";
    around.notify_socket = "/tmp/x/notify-6";
    around.login = {"HOME=/far/home",         "PATH=/far/bin", "SSH_CONNECTION=1",
                    "XDG_RUNTIME_DIR=/run/9", "LANG=C.UTF-8",  "OTHER=far"};
  }

  std::vector<std::string> compose() const {
    return compose_environment(start, start.places[2], around);
  }
  std::string get(const char* name) const { return value_of(compose(), name); }
  bool has(const std::string& name) const {
    const auto words = compose();
    return std::any_of(words.begin(), words.end(),
                       [&](const std::string& w) { return w.rfind(name + "=", 0) == 0; });
  }
};

}  // namespace

TEST_CASE("a worker is told its place in every family") {
  Case c;
  CHECK(c.get("HVD_JOB_ID") == "job-1");
  CHECK(c.get("HVD_RANK") == "6");
  CHECK(c.get("HVD_SIZE") == "8");
  CHECK(c.get("HVD_LOCAL_RANK") == "2");
  CHECK(c.get("HVD_LOCAL_SIZE") == "4");
  CHECK(c.get("HVD_CROSS_RANK") == "1");
  CHECK(c.get("HVD_CROSS_SIZE") == "2");
  CHECK(c.get("HVD_HOST") == "node-b");
  CHECK(c.get("HVD_ATTEMPT") == "3");
  CHECK(c.get("HVD_PREVIOUS_SIZE") == "8");
  CHECK(c.get("HVD_AGENT_SOCKET") == "/tmp/x/agent");
  CHECK(c.get("RANK") == "6");
  CHECK(c.get("LOCAL_RANK") == "2");
  CHECK(c.get("WORLD_SIZE") == "8");
  CHECK(c.get("LOCAL_WORLD_SIZE") == "4");
  CHECK(c.get("GROUP_RANK") == "1");
  CHECK(c.get("MASTER_ADDR") == "10.0.0.1");
  CHECK(c.get("MASTER_PORT") == "4321");
  CHECK(c.get("TORCHELASTIC_RESTART_COUNT") == "2");
  CHECK(c.get("TORCHELASTIC_MAX_RESTARTS") == "10");
  CHECK(c.get("TORCHELASTIC_RUN_ID") == "job-1");
  CHECK(c.get("HOROVOD_RANK") == "6");
  CHECK(c.get("HOROVOD_CROSS_SIZE") == "2");
  CHECK(c.get("HOROVOD_HOSTNAME") == "node-b");
  CHECK(c.get("NOTIFY_SOCKET") == "/tmp/x/notify-6");
  CHECK(c.get("OMP_NUM_THREADS") == "2");
  CHECK(c.get("PWD") == "/data");
}

TEST_CASE("a2: ranks of one machine share its cores under all its names") {
  Case c;
  c.around.cores = 16;
  CHECK(c.get("OMP_NUM_THREADS") == "4");
  c.start.machine_size = 8;
  CHECK(c.get("OMP_NUM_THREADS") == "2");
  c.start.machine_size = 4;
  CHECK(c.get("OMP_NUM_THREADS") == "4");
}

TEST_CASE("c3: the proven card is told to NCCL, gloo and Horovod, unless the user named another") {
  Case c;
  for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"}) {
    CHECK_FALSE(c.has(name));
  }
  c.start.data_card = "eth1";
  c.around.cards = {"lo", "eth0", "eth1"};
  for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"}) {
    CHECK(c.get(name) == "eth1");
  }
  // NCCL would take this name for the beginning of both.
  c.around.cards.emplace_back("eth10");
  CHECK(c.get("NCCL_SOCKET_IFNAME") == "=eth1");
  CHECK(c.get("GLOO_SOCKET_IFNAME") == "eth1");
  c.start.forwarded = {{"NCCL_SOCKET_IFNAME", "^docker"}};
  c.start.set = {{"GLOO_SOCKET_IFNAME", "ib0"}, {"HOROVOD_GLOO_IFACE", ""}};
  CHECK(c.get("NCCL_SOCKET_IFNAME") == "^docker");
  CHECK(c.get("GLOO_SOCKET_IFNAME") == "ib0");
  CHECK(c.get("HOROVOD_GLOO_IFACE").empty());
}

TEST_CASE("resume variables are there only when there is something to resume") {
  Case c;
  CHECK_FALSE(c.has("HVD_RESUME_FROM"));
  CHECK_FALSE(c.has("HVD_RESUME_STEP"));
  c.start.resume_from = "/ckpt/step-000000100";
  c.start.resume_step = 100;
  c.start.reached_step = 140;
  CHECK(c.get("HVD_RESUME_FROM") == "/ckpt/step-000000100");
  CHECK(c.get("HVD_RESUME_STEP") == "100");
  CHECK(c.get("HVD_REACHED_STEP") == "140");
}

TEST_CASE("j4: every rank sees its host's GPUs, or its own part of them when they are split") {
  Case c;
  c.around.devices = 4;
  CHECK_FALSE(c.has("CUDA_VISIBLE_DEVICES"));
  CHECK(c.get("HVD_GPU") == "2");
  c.start.split_gpus = true;
  c.start.gpus_per_rank = 1;
  CHECK(c.get("CUDA_VISIBLE_DEVICES") == "2");
  CHECK(c.get("HVD_GPU") == "2");
  c.around.login.push_back("CUDA_VISIBLE_DEVICES=7,6,GPU-a,5,4,3");
  CHECK(c.get("CUDA_VISIBLE_DEVICES") == "GPU-a");
  c.start.gpus_per_rank = 2;
  CHECK(c.get("CUDA_VISIBLE_DEVICES") == "4,3");
  CHECK(c.get("HVD_GPU") == "4");
  c.start.gpus_per_rank = 0;
  CHECK(c.has("CUDA_VISIBLE_DEVICES"));
  CHECK(c.get("CUDA_VISIBLE_DEVICES").empty());
  CHECK_FALSE(c.has("HVD_GPU"));
  c.start.split_gpus = false;
  CHECK(c.get("CUDA_VISIBLE_DEVICES") == "7,6,GPU-a,5,4,3");
  CHECK(c.get("HVD_GPU") == "GPU-a");
}

TEST_CASE("words in braces are replaced in the arguments, when that was asked for") {
  Case c;
  c.start.argv = {"{rank}", "--out={host}/{rank}.{attempt}", "{resume_from}:{resume_step}",
                  "{x}{{"};
  const Place& place = c.start.places[2];
  CHECK(compose_arguments(c.start, place, "h1") == c.start.argv);
  c.start.substitute = true;
  CHECK(compose_arguments(c.start, place, "h1") ==
        std::vector<std::string>{"{rank}", "--out=h1/6.3", ":", "{x}{{"});
  c.start.resume_from = "/ckpt/step-000000100";
  c.start.resume_step = 100;
  CHECK(compose_arguments(c.start, place, "h1")[2] == "/ckpt/step-000000100:100");
}

TEST_CASE("j7: ranks are bound to equal shares of the cores or to a node, and only when asked") {
  Topology machine;
  for (unsigned core = 0; core < 6; ++core) machine.cores.push_back({core, core + 6});
  machine.nodes = {{0, 1, 2, 6, 7, 8}, {3, 4, 5, 9, 10, 11}};
  CHECK(processors_of(machine, Binding::none, 0, 1).empty());
  CHECK(processors_of(machine, Binding::core, 0, 3) == Processors{0, 6, 1, 7});
  CHECK(processors_of(machine, Binding::core, 2, 3) == Processors{4, 10, 5, 11});
  // Four ranks on six cores: no core is left over or used twice.
  CHECK(processors_of(machine, Binding::core, 0, 4) == Processors{0, 6});
  CHECK(processors_of(machine, Binding::core, 1, 4) == Processors{1, 7, 2, 8});
  CHECK(processors_of(machine, Binding::core, 3, 4) == Processors{4, 10, 5, 11});
  // Twelve ranks on six cores share them two by two.
  CHECK(processors_of(machine, Binding::core, 10, 12) == Processors{5, 11});
  CHECK(processors_of(machine, Binding::core, 11, 12) == Processors{5, 11});
  CHECK(processors_of(machine, Binding::numa, 0, 4) == machine.nodes[0]);
  CHECK(processors_of(machine, Binding::numa, 2, 4) == machine.nodes[1]);
  CHECK(processors_of(machine, Binding::numa, 0, 1) == machine.nodes[0]);

  const auto real = read_topology();
  REQUIRE_MESSAGE(real.ok(), real.error().text);
  size_t processors = 0;
  for (const Processors& core : real->cores) processors += core.size();
  CHECK(processors == count_cores());
}

TEST_CASE("identity comes from this host's login, the rest from the launcher") {
  Case c;
  c.start.forwarded = {{"HOME", "/near/home"},     {"MY_DATA", "near"},
                       {"SSH_AUTH_SOCK", "/near"}, {"DISPLAY", ":0"},
                       {"LANG", "de_DE"},          {"LOCAL_DATA", "kept"},
                       {"NOTIFY_SOCKET", "/n"},    {"CUDA_VISIBLE_DEVICES", "7"}};
  CHECK(c.get("HOME") == "/far/home");
  CHECK(c.get("XDG_RUNTIME_DIR") == "/run/9");
  CHECK(c.get("PATH") == "/far/bin");
  CHECK(c.get("LANG") == "de_DE");
  CHECK(c.get("MY_DATA") == "near");
  CHECK(c.get("LOCAL_DATA") == "kept");
  for (const char* name :
       {"SSH_AUTH_SOCK", "SSH_CONNECTION", "DISPLAY", "OTHER", "CUDA_VISIBLE_DEVICES", "HVD_GPU"}) {
    CHECK_FALSE(c.has(name));
  }
}

TEST_CASE("what an outer launcher told this process never reaches a worker") {
  Case c;
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "GROUP_RANK", "TORCHELASTIC_ERROR_FILE",
        "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_GLOO_IFACE", "HVD_RESUME_FROM",
        "SLURM_PROCID", "SLURM_STEP_ID"}) {
    CAPTURE(name);
    CHECK_FALSE(travels(name));
    c.start.forwarded = {{name, "stale"}};
    CHECK(c.get(name) != "stale");
  }
  CHECK(travels("SLURM_JOB_ID"));
  CHECK(travels("RANKING"));
}

TEST_CASE("what the user sets wins over what is forwarded, and not over a rank's place") {
  Case c;
  c.start.forwarded = {{"A", "1"}, {"OMP_NUM_THREADS", "5"}};
  c.start.set = {{"A", "2"},
                 {"A", "3"},
                 {"RANK", "99"},
                 {"HOME", "/set"},
                 {"HOROVOD_CYCLE_TIME", "1"},
                 {"CUDA_VISIBLE_DEVICES", "4,5,GPU-9"}};
  CHECK(c.get("A") == "3");
  CHECK(c.get("RANK") == "6");
  CHECK(c.get("HOME") == "/set");
  CHECK(c.get("HOROVOD_CYCLE_TIME") == "1");
  CHECK(c.get("OMP_NUM_THREADS") == "5");
  CHECK(c.get("CUDA_VISIBLE_DEVICES") == "4,5,GPU-9");
  CHECK(c.get("HVD_GPU") == "GPU-9");
}

TEST_CASE("names that no process can be given are dropped") {
  Case c;
  c.start.forwarded = {{"", "x"}, {"A=B", "x"}, {"CUT", std::string("a\0b", 3)}};
  for (const std::string& word : c.compose()) {
    CHECK(word.front() != '=');
    CHECK(word.rfind("A=", 0) != 0);
  }
  CHECK(c.get("CUT") == "a");
}

TEST_CASE("the lease follows the echoed time, not the arrival of the echo") {
  const Time start{Duration(1000s)};
  Lease lease(start + 60s);
  lease.set_silence(static_cast<uint64_t>(Duration(10s).count()));
  CHECK(lease.beat_period() == 1s);
  CHECK_FALSE(lease.over(start + 59s));
  const auto beat = [](Time t) { return t.time_since_epoch().count(); };
  lease.echoed(beat(start), start + 5s);
  CHECK(lease.end() == start + 6s);
  SUBCASE("an older echo takes nothing back") {
    lease.echoed(beat(start - 1s), start + 5s);
    CHECK(lease.end() == start + 6s);
  }
  SUBCASE("a time that was never sent is not believed") {
    lease.echoed(beat(start + 9s), start + 5s);
    lease.echoed(-1, start + 5s);
    CHECK(lease.end() == start + 6s);
  }
  CHECK(lease.over(start + 6s));
}

TEST_CASE("beats have a shortest period and silence a longest") {
  Lease lease{Time{}};
  lease.set_silence(0);
  CHECK(lease.beat_period() == 20ms);
  lease.set_silence(UINT64_MAX);
  CHECK(lease.beat_period() > 24h);
}

TEST_CASE("a rank is stalled without a sign for the limit, once it has given one") {
  using Change = Pulse::Change;
  const Time start{100s};
  Pulse pulse(10s);
  CHECK(pulse.judge(start + 1h) == Change::none);
  pulse.sign(start);
  CHECK(pulse.judge(start + 9s) == Change::none);
  CHECK(pulse.judge(start + 10s) == Change::stalled);
  CHECK(pulse.judge(start + 11s) == Change::none);
  CHECK(pulse.quiet(start + 11s) == 11s);
  pulse.sign(start + 12s);
  CHECK(pulse.judge(start + 12s) == Change::moved);
  SUBCASE("an extension holds beyond the limit") {
    pulse.extend(start + 12s, 30s);
    CHECK(pulse.judge(start + 41s) == Change::none);
    CHECK(pulse.judge(start + 42s) == Change::stalled);
  }
  SUBCASE("time in which nobody looked does not count") {
    pulse.forgive(5s);
    CHECK(pulse.judge(start + 26s) == Change::none);
    CHECK(pulse.judge(start + 27s) == Change::stalled);
  }
  SUBCASE("a checkpoint may take longer") {
    pulse.set_patient(true);
    CHECK(pulse.judge(start + 60s) == Change::none);
    CHECK(pulse.judge(start + 112s) == Change::stalled);
    pulse.set_patient(false);
    CHECK(pulse.judge(start + 113s) == Change::none);
  }
}

TEST_CASE("notifications are read line by line") {
  const Notification n = parse_notification("READY=1\nX_HVD_STEP=12\nNONSENSE\nSTATUS=a=b\n");
  CHECK(n.step == 12u);
  CHECK(n.checkpoint.empty());
  CHECK(parse_notification("X_HVD_CHECKPOINT=/a b/c").checkpoint == "/a b/c");
  CHECK_FALSE(n.alive);
  CHECK(parse_notification("WATCHDOG=1").alive);
  CHECK_FALSE(parse_notification("WATCHDOG=trigger").alive);
  CHECK(parse_notification("EXTEND_TIMEOUT_USEC=7").extend_us == 7u);
  for (const char* bad :
       {"", "=", "X_HVD_STEP=", "X_HVD_STEP=-1", "X_HVD_STEP=1x", "x_hvd_step=1"}) {
    CHECK_FALSE(parse_notification(bad).step.has_value());
  }
}

TEST_CASE("c8: a reserved port is nobody else's, and once lent a listener's that reuses") {
  auto port = ReservedPort::take();
  REQUIRE(port.ok());
  const auto try_it = [&](bool reuse, int family) {
    const Fd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = reuse ? 1 : 0;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port->number());
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(port->number());
    const bool bound =
        (family == AF_INET ? bind(fd.get(), reinterpret_cast<sockaddr*>(&four), sizeof four)
                           : bind(fd.get(), reinterpret_cast<sockaddr*>(&six), sizeof six)) == 0;
    return bound && listen(fd.get(), 8) == 0;
  };
  std::vector<int> families = {AF_INET};
  // A kernel without IPv6 has nobody who could ask for it.
  if (Fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0))) families.push_back(AF_INET6);
  for (const int family : families) {
    CAPTURE(family);
    CHECK_FALSE(try_it(false, family));
    CHECK_FALSE(try_it(true, family));
  }
  port->lend();
  for (const int family : families) {
    CAPTURE(family);
    CHECK_FALSE(try_it(false, family));
    CHECK(try_it(true, family));
  }
  port->release();
  for (const int family : families) CHECK(try_it(false, family));
}

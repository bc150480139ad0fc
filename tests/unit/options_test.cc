#include "cli/options.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/variables.h"
#include "launcher/job_file.h"

using namespace hvd;

namespace {

using Words = std::vector<std::string>;

Surroundings here() {
  Surroundings surroundings;
  surroundings.environment = {{"PATH", "/bin"}, {"HOME", "/home/me"}, {"TOKEN", "s3cr3t"}};
  surroundings.directory = "/work/run";
  surroundings.machine.hostname = "node0";
  surroundings.machine.user = "me";
  surroundings.machine.cores = 3;
  return surroundings;
}

// The words of a line, split at blanks; '' is an empty word.
Words words(const std::string& line) {
  std::istringstream in(line);
  Words out;
  for (std::string word; in >> word;) out.push_back(word == "''" ? "" : word);
  return out;
}

Result<Command> parse(const Words& line) {
  return parse_command(line, here());
}

RunCommand run(const Words& line) {
  auto command = parse(line);
  REQUIRE_MESSAGE(command.ok(), command.error().text);
  REQUIRE(std::holds_alternative<RunCommand>(*command));
  return std::get<RunCommand>(*command);
}
RunCommand run(const std::string& line) {
  return run(words(line));
}

std::string error(const Words& line) {
  const auto command = parse(line);
  return command ? "no error" : command.error().text;
}
std::string error(const std::string& line) {
  return error(words(line));
}

std::string hosts(const Job& job) {
  std::string out;
  for (const Host& host : job.hosts) {
    out += (out.empty() ? "" : " ") + host.name + ":" + std::to_string(host.slots);
  }
  return out;
}

std::string file_text(const std::string& path) {
  const auto text = read_file(path, 1 << 20);
  REQUIRE_MESSAGE(text.ok(), text.error().text);
  return *text;
}

// A host file that lives as long as the test needs it.
class HostFileOnDisk {
 public:
  explicit HostFileOnDisk(const std::string& content, const std::string& end = ".toml") {
    char name[] = "/tmp/hvd-options-test-XXXXXX";
    const int fd = mkstemp(name);
    REQUIRE(fd >= 0);
    close(fd);
    unlink(name);
    path_ = name + end;
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~HostFileOnDisk() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("the number of ranks in every spelling") {
  for (const char* line :
       {"-np 4 -H h1:4 train", "-np4 -H h1:4 train", "-np=4 -H h1:4 train", "--np 4 -H h1:4 train",
        "--np=4 -H h1:4 train", "-n 4 -H h1:4 train", "-n4 -H h1:4 train",
        "--num-proc 4 -H h1:4 train", "-num-proc 4 -Hh1:4 train", "run -np 4 --hosts h1:4 train",
        "-H h1:4 -np 2 -np 4 train", "--host=h1:4 -- train", "-np 4 -host h1:4 -- train"}) {
    const RunCommand command = run(line);
    CHECK_MESSAGE(command.job.size == 4, line);
    CHECK_MESSAGE(command.job.argv == Words{"train"}, line);
    CHECK_MESSAGE(hosts(command.job) == "h1:4", line);
  }
}

TEST_CASE("a7: one word is one word: a list takes no other, -H adds up") {
  const RunCommand command = run(Words{"-H", "h1,h2", "sh", "-c", "echo $0 ok"});
  CHECK(hosts(command.job) == "h1:1 h2:1");
  CHECK(command.job.argv == Words{"sh", "-c", "echo $0 ok"});
  CHECK(hosts(run("-H h1 -H h2 train").job) == "h1:1 h2:1");
  CHECK(hosts(run("-H h1,h2 train").job) == "h1:1 h2:1");
  CHECK(run("-x A=1 -x B=2,3 -x C= train").job.set ==
        Variables{{"A", "1"}, {"B", "2,3"}, {"C", ""}});
  CHECK(run("-x A=[1,2] train").job.set == Variables{{"A", "[1,2]"}});
  CHECK(run("-x A={} -x A=%% train").job.set == Variables{{"A", "%%"}});
}

TEST_CASE("a8, a9: left of the program everything must be known; right of it nothing is touched") {
  CHECK(error("--npp 2 -H h1 -- true") == "unknown option '--npp': did you mean '--np'?");
  CHECK(error("--elas -H h1 true") == "unknown option '--elas': did you mean '--elastic'?");
  CHECK(error("--checkpoint -H h1 true") ==
        "unknown option '--checkpoint': `hvdlaunch --help` lists them");
  CHECK(error("--frobnicate true") ==
        "unknown option '--frobnicate': `hvdlaunch --help` lists them");
  CHECK(error("-z true") == "unknown option '-z': `hvdlaunch --help` lists them");
  CHECK(error("-vz true") == "unknown option '-vz': `hvdlaunch --help` lists them");
  CHECK(error("--n 4 true") == "unknown option '--n': did you mean '--np'?");
  CHECK(error(Words{"--n\x1b[2J", "true"}).find('\x1b') == std::string::npos);

  const Words program = {"prog", "-H", "x", "--elastic", "--", "y", "-1", "", "[a,b]", "--np=3"};
  Words line = {"-H", "h1", "--"};
  line.insert(line.end(), program.begin(), program.end());
  CHECK(run(line).job.argv == program);
  line.erase(line.begin() + 2);
  CHECK(run(line).job.argv == program);
  CHECK(run("-H h1 -- echo --r=16").job.argv == Words{"echo", "--r=16"});
  CHECK(run("-H h1 -- -dashed").job.argv == Words{"-dashed"});
  CHECK(run("-H h1 -- -- x").job.argv == Words{"--", "x"});
  CHECK(run("-H h1 -").job.argv == Words{"-"});
  CHECK(run("-H h1 prog resume").job.argv == Words{"prog", "resume"});
  CHECK(run("-H h1 resume x").job.argv == Words{"resume", "x"});
}

TEST_CASE("values that are missing, empty or of the wrong kind") {
  struct Row {
    std::string line, expected;
  };
  const std::vector<Row> rows = {
      {"-np", "--np needs a value: expected --np N"},
      {"-H h1 -np -- train", "--np needs a value: expected --np N"},
      {"-n --hosts h1 train", "-n needs a value: expected -n N"},
      {"-np '' train", "--np '': expected a whole number from 1 to 1000000"},
      {"--np= train", "--np '': expected a whole number from 1 to 1000000"},
      {"-np 0 train", "--np '0': expected a whole number from 1 to 1000000"},
      {"-np -3 train", "--np '-3': expected a whole number from 1 to 1000000"},
      {"-np +3 train", "--np '+3': expected a whole number from 1 to 1000000"},
      {"-np 010 train", "--np '010': expected a whole number from 1 to 1000000"},
      {"-np 0x10 train", "--np '0x10': expected a whole number from 1 to 1000000"},
      {"-np 4.0 train", "--np '4.0': expected a whole number from 1 to 1000000"},
      {"-np 4x train", "--np '4x': expected a whole number from 1 to 1000000"},
      {"--np 99999999999999999999 train",
       "--np '99999999999999999999': expected a whole number from 1 to 1000000"},
      {"--hosts= train", "--hosts '': expected hosts such as h1:4,h2:4, or a host file"},
      {"--oversubscribe=yes train", "--oversubscribe takes no value"},
      {"-x =1 train",
       "--env '=...': expected NAME=VALUE or NAME, the name without blanks and quotes"},
      {"-x NOPE train", "--env 'NOPE': no variable of that name is set here"},
      {"--grace soon train",
       "--grace: 'soon' is not a duration: expected seconds such as 10 or 0.3, or units such as "
       "250ms, 90s, 5m, 2h30m"},
      {"--heartbeat-timeout 10ms train", "--heartbeat-timeout '10ms': expected at least 0.2 s"},
      {"--start-timeout 0 train", "--start-timeout '0': expected at least 0.001 s"},
      {"--checkpoint-every 0 train",
       "--checkpoint-every '0': expected a number of steps such as 100, or a duration such as 10m"},
      {"--checkpoint-every 1.5 train",
       "--checkpoint-every '1.5': expected a number of steps such as 100, or a duration such as "
       "10m"},
      {"--prefix {rnk} train",
       "--prefix '{rnk}': expected {rank}, {local_rank}, {size}, {host} or {attempt} in braces"},
      {"--only-ranks 3-1 train", "--only-ranks '3-1': expected ranks such as 0,3,8-11"},
      {"--only-ranks 0,,1 train", "--only-ranks '0,,1': expected ranks such as 0,3,8-11"},
      {"-np 2 --only-ranks 1-2 train",
       "--only-ranks: there is no rank 2: expected ranks from 0 to 1"},
      {"--ssh-port 70000 train", "--ssh-port '70000': expected a whole number from 1 to 65535"},
      {"-np 2 -H h1:2 --hostfile x train",
       "-H and --hostfile are both given: expected one of them"},
      {"-H h1:2,H1 train",
       "-H: host 'H1' is named twice: expected each host once, with all of its slots"},
      {"-H fd00::2:2 true",
       "-H 'fd00::2:2': 'fd00::2:2' is ambiguous: expected an IPv6 address in brackets, such as "
       "[fd00::2]:2"},
      {"", "no program is named: expected hvdlaunch [OPTIONS] [--] PROGRAM [ARGS...]"},
      {"-np 2 -H h1:2", "no program is named: expected hvdlaunch [OPTIONS] [--] PROGRAM [ARGS...]"},
      {"-H h1 --", "no program is named: expected hvdlaunch [OPTIONS] [--] PROGRAM [ARGS...]"},
      {"-H h1 -- ''", "the program's name is empty"},
      {"check -H h1",
       "the command 'check' is not in this version; a program of that name is run by hvdlaunch -- "
       "check"},
  };
  for (const Row& row : rows) CHECK_MESSAGE(error(row.line) == row.expected, row.line);
  for (const char* option : {"--elastic", "--min-np 1", "--max-np=4"}) {
    const std::string line = std::string(option) + " -H h1 train";
    CHECK_MESSAGE(error(line).find(": jobs that change their size are coming and are not in this "
                                   "version") != std::string::npos,
                  line);
  }
}

TEST_CASE("host files that cannot be read or hold mistakes") {
  CHECK(error("-H ./nowhere.toml train") ==
        "cannot read ./nowhere.toml: No such file or directory");
  CHECK(error("--hostfile nowhere train") == "cannot read nowhere: No such file or directory");
  CHECK(error("-H /tmp/ train") == "cannot read /tmp/: it is a directory, not a file");
  const HostFileOnDisk lots("[[host]]\nname = \"a\"\nlots = 8\n");
  CHECK(error(Words{"-H", lots.path(), "train"}) ==
        lots.path() + ":3:1: unknown key 'lots' in [[host]]: did you mean 'slots'?");
}

TEST_CASE("j3: more ranks than slots") {
  CHECK(error("-np 5 -H h1:2,h2:2 train") ==
        "--np 5: 5 ranks do not fit: the hosts have 4 slots (h1: 2, h2: 2); --oversubscribe allows "
        "more ranks than slots");
  CHECK(hosts(run("-np 5 --oversubscribe -H h1:2,h2:2 train").job) == "h1:3 h2:2");
  CHECK(hosts(run("-np 9 --oversubscribe -H h1:2,h2:1 train").job) == "h1:5 h2:4");
  CHECK(hosts(run("-np 2 --oversubscribe -H h1:2,h2:2 train").job) == "h1:2 h2:2");
  const HostFileOnDisk spare(
      "[[host]]\nname = \"a\"\nslots = 2\n[[host]]\nname = \"s\"\nslots = 2\nspare = true\n"
      "[job]\nnp = 3\n");
  CHECK(error(Words{"-H", spare.path(), "train"}) ==
        spare.path() +
            ":9:1: np 3: 3 ranks do not fit: the hosts have 2 slots (a: 2); "
            "--oversubscribe allows more ranks than slots");
  CHECK(hosts(run(Words{"-H", spare.path(), "--oversubscribe", "train"}).job) == "a:3 s:2");
}

TEST_CASE("j3: max_slots is the limit whoever asks for more") {
  const HostFileOnDisk file("a slots=1 max_slots=2\nb slots=1\nc max-slots=2\n", ".txt");
  const auto with = [&](Words options) {
    Words words = {"-H", file.path()};
    words.insert(words.end(), options.begin(), options.end());
    words.emplace_back("train");
    return words;
  };
  CHECK(hosts(run(with({})).job) == "a:1 b:1 c:1");
  CHECK(hosts(run(with({"-np", "9", "--oversubscribe"})).job) == "a:2 b:5 c:2");
  CHECK(error(with({"-N", "3", "--oversubscribe"})) ==
        "--slots-per-host: a (" + file.path() + ":1:1): 3 slots are above the host's max_slots, 2");
  const HostFileOnDisk toml(
      "[defaults]\nmax-slots = 2\n[[host]]\nname = \"a\"\n[[host]]\nname = \"localhost\"\n"
      "slots = \"auto\"\n");
  const Job job = run(Words{"-H", toml.path(), "train"}).job;
  CHECK(job.hosts[0].max_slots == 2);
  CHECK(job.hosts[1].slots <= 2);
  CHECK(error(Words{"-H", toml.path(), "-np", "5", "--oversubscribe", "train"}) ==
        "--np 5: 5 ranks do not fit: the hosts have 4 slots (a: 2, localhost: 2); max_slots is "
        "their limit");
  const HostFileOnDisk wrong("[[host]]\nname = \"a\"\nslots = 3\nmax-slots = 2\n");
  CHECK(error(Words{"-H", wrong.path(), "train"}) ==
        wrong.path() + ":2:8: 3 slots are above the host's max_slots, 2");
}

TEST_CASE("slots: all of them by default, limited or made by --slots-per-host") {
  CHECK(run("-H h1:2,h2,h3:4 train").job.size == 7);
  CHECK(hosts(run("-N 2 -H h1:4,h2,h3:2 train").job) == "h1:2 h2:2 h3:2");
  CHECK(run("-N 2 -H h1:4,h2,h3:2 train").job.size == 6);
  CHECK(error("--npernode 3 -H h1:4,h2:2 train") ==
        "--slots-per-host 3 is above the 2 slots of h2 (-H); --oversubscribe allows it");
  CHECK(hosts(run("-N 3 --oversubscribe -H h1:4,h2:2 train").job) == "h1:3 h2:3");
}

TEST_CASE("without hosts it is this one") {
  const RunCommand asked = run("-np 8 train");
  CHECK(hosts(asked.job) == "localhost:8");
  CHECK(asked.job.hosts[0].local);
  CHECK(run("train").job.size == 3);  // cores
  Surroundings with_gpus = here();
  with_gpus.machine.gpus = 2;
  const auto gpus = parse_command({"train"}, with_gpus);
  REQUIRE(gpus.ok());
  CHECK(std::get<RunCommand>(*gpus).job.size == 2);
  CHECK(run("-N 4 train").job.size == 4);
  CHECK(error("-N 4 -np 6 train").starts_with("--np 6: 6 ranks do not fit"));
  CHECK(run("-H localhost:2 train").job.hosts[0].local);
  CHECK(run("-H node0:2 train").job.hosts[0].local);
  CHECK_FALSE(run("-H other@localhost:2 train").job.hosts[0].local);
}

TEST_CASE("slots = auto is known of this machine and asked of others") {
  CHECK(hosts(run("-H localhost:auto train").job) == "localhost:3");
  RunCommand unsized = run("-H h0:2,h1:auto,h2:auto train");
  CHECK(unsized.unsized == std::vector<uint32_t>{1, 2});
  CHECK(unsized.placement.empty());
  AgentHello cpus, gpus;
  cpus.cores = gpus.cores = 64;
  gpus.gpus = 8;
  REQUIRE(place_ranks(unsized, {cpus, gpus}).ok());
  CHECK(hosts(unsized.job) == "h0:2 h1:64 h2:8");
  CHECK(unsized.job.size == 74);
  RunCommand many = run("-np 100 -H h1:auto train");
  const Status placed = place_ranks(many, {cpus});
  REQUIRE_FALSE(placed.ok());
  CHECK(placed.error().text.starts_with("--np 100: 100 ranks do not fit: the hosts have 64 slots"));
  CHECK(hosts(run("-N 2 -H h1:auto train").job) == "h1:2");
}

TEST_CASE("port and key are for hosts that give none and are not this one") {
  const HostFileOnDisk file(
      "[[host]]\nname = \"a\"\nport = 2201\nidentity = \"~/own\"\n[[host]]\nname = \"b\"\n"
      "[[host]]\nname = \"localhost\"\n");
  const Job job = run(Words{"-H", file.path(), "--ssh-port", "2222", "-i", "key", "train"}).job;
  CHECK(job.hosts[0].port == 2201);
  CHECK(job.hosts[0].identity == "/home/me/own");
  CHECK(job.hosts[1].port == 2222);
  CHECK(job.hosts[1].identity == "/work/run/key");
  CHECK(job.hosts[2].port == 0);
  CHECK(job.hosts[2].local);
  CHECK(run("-H b -i /k -p 2202 train").job.hosts[0].port == 2202);
}

TEST_CASE("limits, paths and display") {
  const RunCommand plain = run("-np 2 train");
  CHECK(plain.job.start_timeout == std::chrono::seconds(60));
  CHECK(plain.job.silence == std::chrono::seconds(10));
  CHECK(plain.job.grace == std::chrono::seconds(30));
  CHECK(plain.job.failure_grace == std::chrono::seconds(3));
  CHECK(plain.job.stall_timeout == std::chrono::seconds(60));
  CHECK_FALSE(plain.job.stall_asked);
  CHECK(plain.job.stall_action == StallAction::warn);
  CHECK_FALSE(run("--stall-timeout 0 train").job.stall_asked);
  CHECK(plain.job.checkpoint_keep == 3);
  CHECK(plain.job.checkpoint_dir.empty());
  CHECK_FALSE(plain.job.max_restarts.has_value());
  CHECK(plain.job.max_host_failures == 5);
  CHECK(plain.job.workdir == "/work/run");
  CHECK(plain.job.id.empty());
  CHECK(plain.settings.style.prefix);
  CHECK(plain.settings.style.prefix_template == "{rank}@{host}: ");
  CHECK(plain.settings.verbosity == 0);
  CHECK_FALSE(plain.dry_run);

  const RunCommand full = run(
      "-np 2 --wdir sub/../data --checkpoint-dir ckpt/ --checkpoint-every 5m --checkpoint-keep 5 "
      "--grace 1m --failure-grace 0 --walltime 2h30m --start-timeout 2.5 --heartbeat-timeout 300ms "
      "--stall-timeout 5 --stall-action restart "
      "--max-restarts 7 --max-host-failures 2 "
      "--log-dir logs --timestamps --only-ranks 1,0-1 -v --accept-new-host-keys --dry-run train");
  CHECK(full.job.workdir == "/work/run/data");
  CHECK(full.job.checkpoint_dir == "/work/run/data/ckpt");
  CHECK(full.job.checkpoint_every == "5m");
  CHECK(full.job.checkpoint_keep == 5);
  CHECK(full.job.grace == std::chrono::seconds(60));
  CHECK(full.job.failure_grace == Duration::zero());
  CHECK(full.job.wall_time == std::chrono::minutes(150));
  CHECK(full.job.stall_timeout == std::chrono::seconds(5));
  CHECK(full.job.stall_asked);
  CHECK(full.job.stall_action == StallAction::restart);
  CHECK(full.job.start_timeout == std::chrono::milliseconds(2500));
  CHECK(full.job.silence == std::chrono::milliseconds(300));
  CHECK(full.job.max_restarts == 7u);
  CHECK(full.job.max_host_failures == 2);
  const RunCommand ruled =
      run(Words{"--rule", "exit 77: stop", "--rule=log a b: restart", "train"});
  REQUIRE(ruled.job.rules.size() == 2);
  CHECK(ruled.job.rules[1].pattern == "a b");
  CHECK(
      error(Words{"--rule", "exit 77", "train"}).starts_with("--rule 'exit 77': expected a colon"));
  CHECK(full.settings.log_dir == "/work/run/logs");
  CHECK(full.settings.style.timestamps);
  CHECK(full.settings.only_ranks == std::set<uint32_t>{0, 1});
  CHECK(full.settings.verbosity == 1);
  CHECK(full.settings.accept_new_host_keys);
  CHECK(full.dry_run);

  CHECK(run("--reset-limit 0 train").job.max_restarts == 0u);
  CHECK(run("-q train").settings.verbosity == -1);
  CHECK_FALSE(run("--no-prefix train").settings.style.prefix);
  CHECK_FALSE(run("--prefix= train").settings.style.prefix);
  CHECK_FALSE(run(Words{"--prefix", "", "train"}).settings.style.prefix);
  CHECK(run(Words{"--prefix", "[{rank}] ", "train"}).settings.style.prefix_template == "[{rank}] ");
  CHECK(run("--output-filename /l train").settings.log_dir == "/l");
}

TEST_CASE("what travels to the workers") {
  for (const char* name :
       {"PATH", "LANG", "LC_ALL", "TOKEN", "OMP_NUM_THREADS", "NCCL_DEBUG", "PYTHONPATH", "A.B",
        "BASH_FUNC_x%%", "SLURM_JOB_ID", "RANKS", "TERM", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}) {
    CHECK_MESSAGE(travels(name), name);
  }
  for (const char* name : {"HOME",
                           "USER",
                           "LOGNAME",
                           "SHELL",
                           "TMPDIR",
                           "XDG_RUNTIME_DIR",
                           "MAIL",
                           "PWD",
                           "OLDPWD",
                           "SSH_AUTH_SOCK",
                           "DISPLAY",
                           "XAUTHORITY",
                           "KRB5CCNAME",
                           "DBUS_SESSION_BUS_ADDRESS",
                           "LISTEN_FDS",
                           "INVOCATION_ID",
                           "NOTIFY_SOCKET",
                           "CUDA_VISIBLE_DEVICES",
                           "HOSTNAME",
                           "RANK",
                           "LOCAL_RANK",
                           "WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_RUN_ID",
                           "PMI_RANK",
                           "PMI2_X",
                           "PMIX_RANK",
                           "OMPI_COMM_WORLD_RANK",
                           "HOROVOD_RANK",
                           "HVD_RANK",
                           "SLURM_PROCID",
                           "SLURM_STEP_ID",
                           "SLURM_NTASKS",
                           "SLURM_LOCALID",
                           "TF_CONFIG"}) {
    CHECK_MESSAGE(!travels(name), name);
  }
  const Job job = run("-np 2 train").job;
  CHECK(job.forwarded == Variables{{"PATH", "/bin"}, {"TOKEN", "s3cr3t"}});
  const Job set = run("-np 2 -x TOKEN -x HOME=/h -x A=1 -x A=2 train").job;
  CHECK(set.set == Variables{{"TOKEN", "s3cr3t"}, {"HOME", "/h"}, {"A", "2"}});
  CHECK(set.set_by_name == Words{"TOKEN"});
}

TEST_CASE("a file of variables") {
  const HostFileOnDisk file("# comment\n\n  A=1=2 # no comment\nTOKEN\r\nB='x'\nA.B=\n", ".env");
  const Job job = run(Words{"--env-file", file.path(), "-x", "B=y", "train"}).job;
  CHECK(job.set ==
        Variables{{"A", "1=2 # no comment"}, {"TOKEN", "s3cr3t"}, {"A.B", ""}, {"B", "y"}});
  CHECK(job.set_by_name == Words{"TOKEN"});
  CHECK(error("--env-file /none/such train").find("/none/such") != std::string::npos);
}

TEST_CASE("names of variables that nobody means are refused with their place") {
  const std::string usual = ": expected NAME=VALUE or NAME, the name without blanks and quotes";
  struct {
    std::string line, shown;
  } bad[] = {
      {"=s3cret", "'=...'" + usual},
      {"F = s3cret", "'F =...'" + usual},
      {"F\t=s3cret", "'F\\x09=...'" + usual},
      {"\"F\"=s3cret", "'\"F\"=...'" + usual},
      {"two words", "'two words'" + usual},
      {"export D=s3cret",
       "'export D=...': expected NAME=VALUE or NAME without export: no shell reads this"},
      {"NOPE", "'NOPE': no variable of that name is set here"},
  };
  for (const auto& entry : bad) {
    const std::string line = entry.line, shown = entry.shown;
    CAPTURE(line);
    const HostFileOnDisk file("A=1\n" + line + "\n", ".env");
    CHECK(error(Words{"--env-file", file.path(), "train"}) ==
          "--env-file: " + file.path() + ":2: " + shown);
    CHECK(error(Words{"-x", line, "train"}) == "--env " + shown);
    const HostFileOnDisk hosts("[[host]]\nname = \"h1\"\n[job]\nenv = ['''" + line + "''']\n");
    CHECK(error(Words{"-H", hosts.path(), "train"}) == hosts.path() + ":4:1: env " + shown);
  }
  const HostFileOnDisk host("[[host]]\nname = \"h1\"\nenv = { \"F \" = \"1\" }\n");
  CHECK(error(Words{"-H", host.path(), "train"})
            .starts_with(host.path() + ":3:9: the name of a variable cannot be 'F '"));
}

TEST_CASE("d1: a program of the active environment is meant by its path") {
  char folder[] = "/tmp/hvd-venv-test-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string program = std::string(folder) + "/python3";
  std::ofstream(program) << "#!/bin/sh\n";
  REQUIRE(chmod(program.c_str(), 0755) == 0);
  Surroundings around = here();
  around.environment = {{"PATH", std::string(folder) + ":/bin"}};
  const auto program_of = [&](const Words& line) {
    const auto command = parse_command(line, around);
    REQUIRE_MESSAGE(command.ok(), command.error().text);
    return std::get<RunCommand>(*command).job.argv[0];
  };
  CHECK(program_of({"python3"}) == "python3");
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    around.environment.resize(1);
    around.environment.emplace_back(name, folder);
    CHECK(program_of({"python3"}) == program);
    CHECK(program_of({"sh"}) == "sh");
    CHECK(program_of({"none-such"}) == "none-such");
    CHECK(program_of({"./python3"}) == "./python3");
  }
  unlink(program.c_str());
  rmdir(folder);
}

TEST_CASE("of two options that exclude each other the command line's wins") {
  const HostFileOnDisk rsh(
      "[[host]]\nname = \"h1\"\n[job]\nrsh = \"docker exec -i\"\nno-prefix = true\n");
  const RunCommand command =
      run(Words{"-H", rsh.path(), "--transport", "libssh", "--prefix", "X ", "train"});
  CHECK(command.job.rsh.empty());
  CHECK(command.job.transport == Transport::libssh);
  CHECK(command.settings.style.prefix);
  CHECK(command.settings.style.prefix_template == "X ");
  const HostFileOnDisk transport("[[host]]\nname = \"h1\"\n[job]\ntransport = \"libssh\"\n");
  CHECK(run(Words{"-H", transport.path(), "--rsh", "kubectl exec -i", "train"}).job.rsh.size() ==
        3);
  CHECK(error("-H h1 --rsh x --transport libssh train").find("are both given") !=
        std::string::npos);
}

TEST_CASE("which hosts, GPUs and cores") {
  CHECK(error("--include nosuch train").starts_with("--include 'nosuch': no host is named"));
  CHECK(hosts(run("-H h[1-4]:2 --include h[1-3] --exclude h2 train").job) == "h1:2 h3:2");
  CHECK(error("-H h1,h2 --include h3 train").starts_with("--include 'h3': no host is named 'h3'"));
  CHECK(error("-H h1 --include h1,,h2 train").starts_with("--include 'h1,,h2': expected hosts"));
  const Job job = run("-np 2 --gpus-per-rank 0 --bind numa --substitute --oversubscribe train").job;
  CHECK(job.gpus_per_rank == 0u);
  CHECK(job.binding == Binding::numa);
  CHECK(job.substitute);
  CHECK(job.oversubscribe);
  CHECK_FALSE(run("train").job.gpus_per_rank.has_value());
  CHECK(error("--bind socket train") == "--bind 'socket': expected none, core or numa");
  const RunCommand printed = run("-np 2 --print-env train");
  CHECK(printed.print_env);
  CHECK(printed.job.argv == Words{"env"});
  CHECK(run("-np 2 --print-env").job.argv == Words{"env"});
}

TEST_CASE("a [job] table fills what the command line does not say") {
  const HostFileOnDisk file(
      "[[host]]\nname = \"a\"\nslots = 8\n[job]\nnum-proc = 4\ncheckpoint-dir = \"/c\"\n"
      "oversubscribe = false\ngrace = 5\nfailure-grace = \"250ms\"\nenv = [\"A=1\", \"B=2\"]\n"
      "only-ranks = [0, \"2-3\"]\ncheckpoint-every = 10\nno-prefix = true\n");
  const RunCommand filled = run(Words{"-H", file.path(), "train"});
  CHECK(filled.job.size == 4);
  CHECK(filled.job.checkpoint_dir == "/c");
  CHECK(filled.job.grace == std::chrono::seconds(5));
  CHECK(filled.job.failure_grace == std::chrono::milliseconds(250));
  CHECK(filled.job.set == Variables{{"A", "1"}, {"B", "2"}});
  CHECK(filled.job.checkpoint_every == "10");
  CHECK(filled.settings.only_ranks == std::set<uint32_t>{0, 2, 3});
  CHECK_FALSE(filled.settings.style.prefix);
  const RunCommand over = run(
      {"-H", file.path(), "-np", "2", "-x", "B=3", "--only-ranks", "1", "--grace", "1", "train"});
  CHECK(over.job.size == 2);
  CHECK(over.job.set == Variables{{"A", "1"}, {"B", "3"}});
  CHECK(over.settings.only_ranks == std::set<uint32_t>{1});
  CHECK(over.job.grace == std::chrono::seconds(1));
}

TEST_CASE("rules stand in a [job] table as tables, or as the command line has them") {
  const HostFileOnDisk file(
      "[[host]]\nname = \"a\"\n[job]\nnp = 1\n[[job.rule]]\non = \"exit 77\"\naction = \"stop\"\n"
      "[[job.rule]]\non = \"log a: b\"\naction = \"restart\"\n");
  const RunCommand tables = run(Words{"-H", file.path(), "train"});
  REQUIRE(tables.job.rules.size() == 2);
  CHECK(tables.job.rules[0].text == "exit 77: stop");
  CHECK(tables.job.rules[1].pattern == "a: b");
  const RunCommand over = run(Words{"-H", file.path(), "--rule", "stall: stop", "train"});
  REQUIRE(over.job.rules.size() == 1);
  CHECK(over.job.rules[0].on == Rule::On::stall);
  const HostFileOnDisk words("[[host]]\nname = \"a\"\n[job]\nrule = [\"memory: stop\"]\n");
  CHECK(run(Words{"-H", words.path(), "train"}).job.rules.size() == 1);
}

TEST_CASE("mistakes in a [job] table have their place") {
  struct Row {
    std::string table, expected;
  };
  const std::vector<Row> rows = {
      {"npp = 4", "4:1: unknown option 'npp' in [job]: did you mean 'np'?"},
      {"timeouts = 4",
       "4:1: unknown option 'timeouts' in [job]: the nearest are 'stall-timeout' "
       "and 'start-timeout'; hvdlaunch(1) names all"},
      {"np = \"4\"", "4:1: np expects a whole number"},
      {"np = 4.0", "4:1: np expects a whole number"},
      {"np = 0", "4:1: np '0': expected a whole number from 1 to 1000000"},
      {"np = [1, 2]", "4:1: np expects one value, not a list"},
      {"oversubscribe = 1", "4:1: oversubscribe expects true or false"},
      {"grace = true", "4:1: grace expects a number of seconds or a duration such as \"5m\""},
      {"grace = \"x\"",
       "4:1: grace: 'x' is not a duration: expected seconds such as 10 or 0.3, or units such as "
       "250ms, 90s, 5m, 2h30m"},
      {"wdir = 4", "4:1: wdir expects a string"},
      {"hosts = \"h1\"",
       "4:1: option 'hosts' cannot stand in [job]: expected it on the command line"},
      {"dry-run = true",
       "4:1: option 'dry-run' cannot stand in [job]: expected it on the command line"},
      {"accept-new-host-keys = true",
       "4:1: option 'accept-new-host-keys' cannot stand in [job]: expected it on the command line"},
      {"np = 1\nnum-proc = 2", "5:1: option 'num-proc' is given twice, first at PATH:4:1"},
      {"rule = \"exit 77\"",
       "4:1: rule 'exit 77': expected a colon and stop, restart, exclude-host or ignore-budget at "
       "its end, as in 'exit 77: stop'"},
      {"[[job.rule]]\non = \"stall\"\naction = \"stop\"\n[[job.rule]]\non = \"exit x\"\naction = "
       "\"stop\"",
       "7:1: rule 'exit x: stop': expected an exit code from 1 to 255 behind exit"},
      {"[[job.rule]]\non = \"stall\"\nactions = \"stop\"",
       "6:1: unknown key 'actions' of a rule: did you mean 'action'?"},
      {"elastic = true",
       "4:1: elastic: jobs that change their size are coming and are not in this version"},
  };
  for (const Row& row : rows) {
    const HostFileOnDisk file("[[host]]\nname = \"a\"\n[job]\n" + row.table + "\n");
    std::string expected = file.path() + ":" + row.expected;
    const size_t path = expected.find("PATH");
    if (path != std::string::npos) expected.replace(path, 4, file.path());
    CHECK(error(Words{"-H", file.path(), "train"}) == expected);
  }
  // A value that the command line replaces must be right all the same.
  const HostFileOnDisk file("[[host]]\nname = \"a\"\n[job]\nnp = \"4\"\n");
  CHECK(error(Words{"-H", file.path(), "-np", "1", "train"}) ==
        file.path() + ":4:1: np expects a whole number");
}

TEST_CASE("a bare word is a file if there is one, and that is said") {
  const HostFileOnDisk file("h1 slots=3\n", "");
  REQUIRE(chdir("/tmp") == 0);
  const std::string name = file.path().substr(5);
  const RunCommand command = run(Words{"-H", name, "train"});
  CHECK(hosts(command.job) == "h1:3");
  REQUIRE(command.notices.size() == 1);
  CHECK(command.notices[0] ==
        "-H " + name + " is the file of that name; for a host write -H " + name + ":1");
  REQUIRE(chdir("/") == 0);
  CHECK(error("-H tmp train") ==
        "cannot read tmp: it is a directory, not a file; for a host of that name write -H tmp:1");
}

TEST_CASE("commands") {
  for (const Words& line : {Words{"--help"}, Words{"-h"}, Words{"help"},
                            Words{"-np", "4", "--help"}, Words{"resume", "--help"}}) {
    const auto command = parse(line);
    REQUIRE(command.ok());
    CHECK(std::get<PrintCommand>(*command).text == usage_text());
  }
  for (const Words& line : {Words{"--version"}, Words{"-V"}, Words{"version"}}) {
    const auto command = parse(line);
    REQUIRE(command.ok());
    CHECK(std::get<PrintCommand>(*command).text == "hvdlaunch " HVD_VERSION "\n");
  }
  CHECK(run("-H h1 prog --help").job.argv == Words{"prog", "--help"});
  CHECK(run("-- check").job.argv == Words{"check"});
}

TEST_CASE("the words of resume") {
  auto command = parse(words("resume ckpt/a --np 2 -- prog -x"));
  REQUIRE_MESSAGE(command.ok(), command.error().text);
  auto resume = std::get<ResumeCommand>(*command);
  CHECK(resume.dir == "/work/run/ckpt/a");
  CHECK(resume.argv == Words{"prog", "-x"});
  CHECK(resume.asked.size == 2u);
  command = parse(words("resume -H h1:2,h2:2 /c/"));
  REQUIRE(command.ok());
  resume = std::get<ResumeCommand>(*command);
  CHECK(resume.dir == "/c");
  CHECK(resume.argv.empty());
  CHECK(resume.hosts.size() == 2);
  CHECK(error("resume") ==
        "no checkpoint folder is named: expected hvdlaunch resume CKPT_DIR [OPTIONS] [-- PROGRAM "
        "[ARGS...]]");
  CHECK(error("resume /c prog") ==
        "unexpected word 'prog': expected one checkpoint folder, and a program after --");
  CHECK(error("resume /c --checkpoint-dir /d") ==
        "--checkpoint-dir is the folder that resume names already");
  CHECK(error("resume /c --npp 3") == "unknown option '--npp': did you mean '--np'?");
}

TEST_CASE("resume of a folder on another host names one host and a whole path") {
  for (const auto& [word, name, user] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"h1:/c/d/", "h1", ""},
           {"me@h1:/c/d", "h1", "me"},
           {"[fd00::2]:/c//d", "fd00::2", ""}}) {
    auto command = parse(words("resume " + word + " --ssh-port 2222"));
    REQUIRE_MESSAGE(command.ok(), command.error().text);
    const auto resume = std::get<ResumeCommand>(*command);
    REQUIRE(resume.where.has_value());
    CHECK(resume.where->name == name);
    CHECK(resume.where->user == user);
    CHECK(resume.dir == "/c/d");
    const auto ask = job_to_ask(resume, here());
    REQUIRE_MESSAGE(ask.ok(), ask.error().text);
    REQUIRE(ask->job.hosts.size() == 1);
    CHECK(ask->job.hosts[0].port == 2222);
    CHECK_FALSE(ask->job.hosts[0].local);
  }
  const std::string expected =
      ": expected HOST:DIR with a DIR that begins with /, or a folder of this machine (./ before "
      "one that has a colon)";
  for (const std::string word : {"h1:c/d", "h1:", "h1:c"}) {
    CHECK(error("resume " + word) == "'" + word + "'" + expected);
  }
  CHECK(error("resume h1:4:/c") == "'h1:4:/c': expected one host before the folder, without slots");
  CHECK(error("resume h[1-2]:/c") ==
        "'h[1-2]:/c': expected one host before the folder, without slots");
  CHECK(error("resume -h1:/c") != "");
  CHECK(std::get<ResumeCommand>(*parse(words("resume ./a:/c"))).dir == "/work/run/a:/c");
}

TEST_CASE("what was local where a job was launched is reached by the name that was given") {
  RunCommand first = run("-np 2 --checkpoint-dir /c train");
  Host where;
  where.name = where.address = "far";
  Job job = first.job;
  relocate(job, where, "another-machine");
  CHECK(job.hosts[0].local);
  relocate(job, where, job.launched_on);
  CHECK(job.hosts[0].name == "far");
  CHECK_FALSE(job.hosts[0].local);
  CHECK(job.hosts[0].slots == 2);
}

TEST_CASE("resume goes on as the job was started, but for what is said") {
  const RunCommand first = run(
      "-np 4 -H h1:2,me@h2:2 --ssh-port 2222 --checkpoint-dir /c --grace 5 -x A=1 -x TOKEN train "
      "--lr 1");
  const auto saved = parse_job_file(job_file_text(first.job, "1"), "/c/job.toml");
  REQUIRE_MESSAGE(saved.ok(), saved.error().text);
  Surroundings later = here();
  later.environment = {{"PATH", "/other"}, {"LANG", "C"}};
  later.directory = "/elsewhere";
  const auto resumed = [&](const std::string& line) {
    auto command = parse_command(words("resume " + line), later);
    REQUIRE_MESSAGE(command.ok(), command.error().text);
    return resumed_job(*saved, std::get<ResumeCommand>(*command), later);
  };

  const auto same = resumed("/c");
  REQUIRE_MESSAGE(same.ok(), same.error().text);
  CHECK(same->job.argv == Words{"train", "--lr", "1"});
  CHECK(same->job.workdir == "/work/run");
  CHECK(same->job.size == 4);
  CHECK(same->job.resume);
  CHECK(same->job.checkpoint_dir == "/c");
  CHECK(same->job.hosts[1].user == "me");
  CHECK(same->job.hosts[1].port == 2222);
  CHECK(same->job.grace == std::chrono::seconds(5));
  CHECK(same->job.forwarded == Variables{{"LANG", "C"}, {"PATH", "/bin"}});
  CHECK(same->job.set == Variables{{"A", "1"}});
  REQUIRE(same->notices.size() == 1);
  CHECK(same->notices[0] == "the job was started with -x TOKEN, which is not set here");
  CHECK(same->placement.size() == 2);

  const auto changed = resumed("/moved --np 2 -H h3:2 --grace 7 -x A=2 -x TOKEN=t -- prog");
  REQUIRE_MESSAGE(changed.ok(), changed.error().text);
  CHECK(changed->job.argv == Words{"prog"});
  CHECK(changed->job.checkpoint_dir == "/moved");
  CHECK(changed->job.size == 2);
  CHECK(hosts(changed->job) == "h3:2");
  CHECK(changed->job.grace == std::chrono::seconds(7));
  CHECK(changed->job.set == Variables{{"A", "2"}, {"TOKEN", "t"}});

  const auto few = resumed("/c -H h3:2");
  REQUIRE_FALSE(few.ok());
  CHECK(
      few.error().text ==
      "4 ranks do not fit: the hosts have 2 slots (h3: 2); --oversubscribe allows more ranks than "
      "slots");
}

TEST_CASE("a job on its launcher's own machine resumes there only") {
  const RunCommand first = run("-np 4 --checkpoint-dir /c train");
  const auto saved = parse_job_file(job_file_text(first.job, "1"), "/c/job.toml");
  REQUIRE_MESSAGE(saved.ok(), saved.error().text);
  ResumeCommand command;
  command.dir = "/c";
  auto same = resumed_job(*saved, command, here());
  REQUIRE_MESSAGE(same.ok(), same.error().text);
  CHECK(hosts(same->job) == "localhost:4");
  CHECK(same->job.hosts[0].local);
  command.asked.size = 6;
  same = resumed_job(*saved, command, here());
  REQUIRE_MESSAGE(same.ok(), same.error().text);
  CHECK(hosts(same->job) == "localhost:6");
  command.asked.size.reset();
  Surroundings other = here();
  other.machine.hostname = "node9";
  const auto elsewhere = resumed_job(*saved, command, other);
  REQUIRE_FALSE(elsewhere.ok());
  CHECK(
      elsewhere.error().text ==
      "the job ran on 'localhost' of the machine 'node0', and this is 'node9': expected its hosts "
      "with -H, by names that hold here");
  // A local host that was named by its hostname is reached over the network from elsewhere.
  const RunCommand named = run("-H node0:2 --checkpoint-dir /c train");
  CHECK(named.job.hosts[0].local);
  const auto saved_named = parse_job_file(job_file_text(named.job, "1"), "/c/job.toml");
  REQUIRE(saved_named.ok());
  const auto remote = resumed_job(*saved_named, command, other);
  REQUIRE_MESSAGE(remote.ok(), remote.error().text);
  CHECK_FALSE(remote->job.hosts[0].local);
}

TEST_CASE("the plan as a table") {
  const RunCommand command = run(
      {"-np", "3", "-H", "h1:2,host2:2", "--dry-run", "train", "a b", "it's", "", "x\ty", "$1"});
  CHECK(dry_run_text(command) ==
        "rank  host   local rank  command\n"
        "0     h1     0           train 'a b' 'it'\\''s' '' $'x\\x09y' '$1'\n"
        "1     h1     1           train 'a b' 'it'\\''s' '' $'x\\x09y' '$1'\n"
        "2     host2  0           train 'a b' 'it'\\''s' '' $'x\\x09y' '$1'\n");
  const HostFileOnDisk file("[[host]]\nname = \"a\"\n[[host]]\nname = \"s\"\nspare = true\n");
  CHECK(dry_run_text(run(Words{"-H", file.path(), "true"})) ==
        "rank  host  local rank  command\n"
        "0     a     0           true\n"
        "-     s     -           (spare)\n");
  const std::string names =
      "{rank}/{size} {local_rank}@{host} {attempt} <{resume_from}{resume_step}> {x}";
  const auto row = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"-np", "3", "-H", "h1:2,h2:2", "{rank}", names});
    const std::string text = dry_run_text(run(options));
    return text.substr(text.rfind("2     h2"));
  };
  const std::string as_it_is = "2     h2    0           '{rank}' '" + names + "'\n";
  CHECK(row({}) == as_it_is);
  CHECK(row({"--substitute"}) == "2     h2    0           '{rank}' '2/3 0@h2 1 <> {x}'\n");
  CHECK(row({"--substitute", "--checkpoint-dir", "/c"}) ==
        "2     h2    0           '{rank}' '2/3 0@h2 1 <{resume_from}{resume_step}> {x}'\n");
}

TEST_CASE("a1: the same plan for six spellings of a host file") {
  const std::string plan = dry_run_text(run("-H h1:4,h2:2 true"));
  for (const std::string& content :
       {std::string("h1:4\nh2:2\n"), std::string("h1:4\nh2:2"), std::string("h1:4\r\nh2:2\r\n"),
        std::string("h1\tslots=4\nh2 slots=2   \n"), std::string("\xef\xbb\xbfh1:4\nh2:2\n"),
        std::string("# a\nh1:4 # b\n\nh2:2\n")}) {
    const HostFileOnDisk file(content, ".txt");
    CHECK(dry_run_text(run(Words{"-H", file.path(), "true"})) == plan);
  }
  const HostFileOnDisk toml(
      "\xef\xbb\xbf# a\r\n[[host]]\r\nname\t= \"h1\" # b\r\nslots = 4\r\n[[host]]\r\n"
      "name = \"h2\"\r\nslots = 2");
  CHECK(dry_run_text(run(Words{"--hostfile", toml.path(), "true"})) == plan);
}

TEST_CASE("--help, the manual and the options are the same") {
  // A line of the manual that begins an option: .It Fl n , Fl -np Ar N
  std::set<std::string> manual;
  std::istringstream lines(file_text(HVD_SOURCE_DIR "/man/hvdlaunch.1"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(".It Fl ")) continue;
    const Words parts = words(line);
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      if (parts[i] == "Fl") manual.insert("-" + parts[i + 1]);
    }
  }
  std::set<std::string> known;
  const std::string help = usage_text();
  for (const Option& option : options()) {
    if (*option.group == '\0') continue;
    for (const std::string& spelling : spellings(option)) {
      CHECK_MESSAGE(known.insert(spelling).second, spelling);
      CHECK_MESSAGE(help.find(" " + spelling) != std::string::npos, spelling);
    }
    CHECK_MESSAGE(std::string(option.help).size() > 3, option.names);
  }
  for (const std::string& name : known) CHECK_MESSAGE(manual.contains(name), name);
  for (const std::string& name : manual) CHECK_MESSAGE(known.contains(name), name);
  // Nothing in the usage text looks like an option that does not exist, and it fits a terminal.
  std::istringstream help_lines(help);
  for (std::string line; std::getline(help_lines, line);) CHECK_MESSAGE(line.size() <= 100, line);
}

TEST_CASE("the example host files are read") {
  const RunCommand example = run(Words{"-H", HVD_SOURCE_DIR "/configs/hosts.toml", "train"});
  CHECK(example.job.size == 16);
  CHECK(example.job.hosts.size() == 5);
  CHECK(example.job.hosts[4].spare);
  CHECK(example.job.hosts[0].user == "train");
  const RunCommand job = run(Words{"-H", HVD_SOURCE_DIR "/configs/job.toml", "train"});
  CHECK(job.job.checkpoint_dir == "/shared/ckpt");
  CHECK(job.job.size == 8);
  CHECK(job.job.max_restarts == 5u);
}

TEST_CASE("the discovery script's output is a host file") {
  FILE* script = popen(
      "sh " HVD_SOURCE_DIR "/configs/discover.sh " HVD_SOURCE_DIR "/configs/discover.hosts", "r");
  REQUIRE(script != nullptr);
  std::string output;
  char block[4096];
  while (const size_t n = fread(block, 1, sizeof block, script)) output.append(block, n);
  CHECK(pclose(script) == 0);
  const auto file = parse_hosts_text(output, "discover.sh");
  REQUIRE_MESSAGE(file.ok(), file.error().text);
  REQUIRE(file->hosts.size() == 2);
  CHECK(file->hosts[0].name == "gpu01");
  CHECK(file->hosts[0].slots == 8);
  CHECK(file->hosts[1].name == "gpu02");
}

TEST_CASE("no command line brings the parser down") {
  const Words parts = {"-np",   "4",    "-H",      "h1:2",  "--",          "",     "-",
                       "--np=", "-x",   "A=1",     "-v",    "--prefix",    "{}",   "resume",
                       "/c",    "-nq7", "--help=", "[a,b]", "--no-prefix", "%%",   "-",
                       "---",   "--=",  "-=",      "=",     "-np=",        "\xff", "run"};
  // A sample: the fuzz target command_line looks wider.
  std::mt19937 random(11);
  for (int i = 0; i < 1'000; ++i) {
    Words line;
    for (size_t n = random() % 7; n > 0; --n) line.push_back(parts[random() % parts.size()]);
    const auto command = parse(line);
    if (!command) CHECK_FALSE(command.error().text.empty());
  }
}

TEST_CASE("inside an allocation of Slurm its hosts are taken, and reached by srun") {
  Surroundings around = here();
  around.environment.emplace_back("SLURM_JOB_ID", "17");
  around.environment.emplace_back("SLURM_JOB_NODELIST", "n[1-2],node0");
  around.environment.emplace_back("SLURM_NTASKS", "5");
  around.environment.emplace_back("SLURM_TASKS_PER_NODE", "2(x2),1");
  const auto job = [&around](const std::string& line) {
    auto command = parse_command(words(line), around);
    REQUIRE_MESSAGE(command.ok(), command.error().text);
    return std::get<RunCommand>(*command).job;
  };
  const Job plain = job("train");
  CHECK(hosts(plain) == "n1:2 n2:2 node0:1");
  CHECK(plain.allocation == "17");
  CHECK(plain.size == 5);
  for (const Host& host : plain.hosts) CHECK_FALSE(host.local);
  CHECK(hosts(job("--exclude n1 -np 2 train")) == "n2:2 node0:1");
  CHECK(hosts(job("--rsh x train")) == "n1:2 n2:2 node0:1");
  CHECK(job("--rsh x train").allocation.empty());
  CHECK(job("--transport openssh train").allocation.empty());
  CHECK(job("-H other:2 train").allocation.empty());
  CHECK(job("-H n2:2 --transport slurm train").allocation == "17");
  CHECK(hosts(job("--transport local -np 3 train")) == "localhost:3");
  CHECK_FALSE(parse_command(words("-N 3 train"), around).ok());
  around.environment.back().second = "2(x";
  CHECK(parse_command(words("train"), around).error().text ==
        "SLURM_TASKS_PER_NODE is '2(x': expected counts such as 4(x2),3");
  CHECK(error("--transport slurm -H n1 train").starts_with("--transport slurm: this is no"));
}

TEST_CASE("a job that ran in an allocation goes on in another, and not on nodes that are others'") {
  Surroundings around = here();
  Job saved = run("-H n7:2 -np 2 train").job;
  saved.hosts[0].source = "SLURM_JOB_NODELIST";
  ResumeCommand command;
  command.dir = "/ckpt";
  const auto outside = resumed_job(saved, command, around);
  REQUIRE_FALSE(outside.ok());
  CHECK(outside.error().text.find("in an allocation of Slurm") != std::string::npos);
  around.environment.emplace_back("SLURM_JOB_ID", "18");
  around.environment.emplace_back("SLURM_JOB_NODELIST", "n9");
  around.environment.emplace_back("SLURM_JOB_CPUS_PER_NODE", "4");
  const auto inside = resumed_job(saved, command, around);
  REQUIRE_MESSAGE(inside.ok(), inside.error().text);
  CHECK(hosts(inside->job) == "n9:4");
  CHECK(inside->job.size == 2);
  CHECK(inside->job.allocation == "18");
}

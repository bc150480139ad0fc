#include "launcher/job_file.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

using namespace hvd;

namespace {

Job example() {
  Job job;
  job.argv = {"train",
              "",
              "a  b",
              "quote\" back\\slash",
              "line\nbreak\ttab",
              "\x01\x7f",
              "caf\xc3\xa9",
              "not utf-8: \xff\xfe",
              "{rank}",
              "#",
              "'''"};
  job.workdir = "/home/me/run \xff";
  job.forwarded = {{"PATH", "/usr/bin:/bin"}, {"SECRET", "never"},    {"CONDA_PREFIX", "/opt/c"},
                   {"LD_LIBRARY_PATH", ""},   {"PYTHONPATH", "\xc0"}, {"VIRTUAL_ENV", "/v"}};
  job.set = {{"A.B", "1"}, {"TOKEN", "s3cr3t"}, {"BASH_FUNC_x%%", "() { :; }"}, {"B", "\xff"}};
  job.set_by_name = {"TOKEN"};
  job.size = 7;
  job.launched_on = "node0";
  job.start_timeout = std::chrono::milliseconds(1500);
  job.silence = std::chrono::nanoseconds(1'234'567'891);
  job.grace = Duration::zero();
  job.failure_grace = std::chrono::hours(24 * 400);
  job.wall_time = std::chrono::minutes(90);
  job.stall_timeout = std::chrono::seconds(5);
  job.stall_asked = true;
  job.stall_action = StallAction::restart;
  job.checkpoint_dir = "/shared/ckpt";
  job.checkpoint_every = "10m";
  job.checkpoint_keep = 9;
  job.max_restarts = 0;
  job.max_host_failures = 9;
  job.rules = {*parse_rule("exit 77: stop"), *parse_rule("log a \"b\": restart")};
  job.substitute = job.oversubscribe = true;
  job.gpus_per_rank = 0;
  job.binding = Binding::numa;
  Host a;
  a.name = "gpu01";
  a.address = "10.0.0.1";
  a.port = 2222;
  a.user = "train";
  a.identity = "/home/me/.ssh/id \"x\"";
  a.slots = 5;
  a.slots_given = true;
  a.gpus = {"0", "GPU-8f2c"};
  a.env = {{"B", "2"}, {"A.x", "1"}};
  a.workdir = "/data";
  a.labels = {{"rack", "a"}};
  a.source = "hosts.toml:3:1";
  Host b;
  b.name = b.address = "fd00::2";
  b.slots = 3;
  b.spare = true;
  b.slots_auto = true;
  b.source = "-H";
  Host c;
  c.name = c.address = "localhost";
  c.local = true;
  c.slots_given = true;
  c.source = "this machine";
  job.hosts = {a, b, c};
  return job;
}

void check_same(const Host& a, const Host& b) {
  CHECK(a.name == b.name);
  CHECK(a.address == b.address);
  CHECK(a.port == b.port);
  CHECK(a.user == b.user);
  CHECK(a.identity == b.identity);
  CHECK(a.slots == b.slots);
  CHECK(a.slots_auto == b.slots_auto);
  CHECK(a.slots_given == b.slots_given);
  CHECK(a.gpus == b.gpus);
  CHECK(a.env == b.env);
  CHECK(a.workdir == b.workdir);
  CHECK(a.labels == b.labels);
  CHECK(a.spare == b.spare);
  CHECK(a.local == b.local);
  CHECK(a.source == b.source);
}

void check_same(const Job& a, const Job& b) {
  CHECK(a.argv == b.argv);
  CHECK(a.workdir == b.workdir);
  CHECK(a.size == b.size);
  CHECK(a.launched_on == b.launched_on);
  CHECK(a.set_by_name == b.set_by_name);
  CHECK(a.start_timeout == b.start_timeout);
  CHECK(a.silence == b.silence);
  CHECK(a.grace == b.grace);
  CHECK(a.failure_grace == b.failure_grace);
  CHECK(a.wall_time == b.wall_time);
  CHECK(a.stall_timeout == b.stall_timeout);
  CHECK(a.stall_asked == b.stall_asked);
  CHECK(a.stall_action == b.stall_action);
  CHECK(a.checkpoint_dir == b.checkpoint_dir);
  CHECK(a.checkpoint_every == b.checkpoint_every);
  CHECK(a.checkpoint_keep == b.checkpoint_keep);
  CHECK(a.max_restarts == b.max_restarts);
  CHECK(a.max_host_failures == b.max_host_failures);
  REQUIRE(a.rules.size() == b.rules.size());
  for (size_t i = 0; i < a.rules.size(); ++i) CHECK(a.rules[i].text == b.rules[i].text);
  CHECK(a.substitute == b.substitute);
  CHECK(a.oversubscribe == b.oversubscribe);
  CHECK(a.gpus_per_rank == b.gpus_per_rank);
  CHECK(a.binding == b.binding);
  REQUIRE(a.hosts.size() == b.hosts.size());
  for (size_t i = 0; i < a.hosts.size(); ++i) check_same(a.hosts[i], b.hosts[i]);
}

std::string error(const std::string& text) {
  const auto job = parse_job_file(text, "job.toml");
  return job ? "no error" : job.error().text;
}

// The example's text with `from` replaced.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = job_file_text(example(), "1.2.3");
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a job survives its file, byte for byte") {
  const Job job = example();
  const std::string text = job_file_text(job, "1.2.3");
  const auto read = parse_job_file(text, "job.toml");
  REQUIRE_MESSAGE(read.ok(), read.error().text);
  check_same(job, *read);
  CHECK(read->forwarded == Variables{{"PATH", "/usr/bin:/bin"},
                                     {"CONDA_PREFIX", "/opt/c"},
                                     {"LD_LIBRARY_PATH", ""},
                                     {"PYTHONPATH", "\xc0"},
                                     {"VIRTUAL_ENV", "/v"}});
  CHECK(read->set == Variables{{"A.B", "1"}, {"BASH_FUNC_x%%", "() { :; }"}, {"B", "\xff"}});
  CHECK(read->id.empty());
  CHECK_FALSE(read->resume);
  // Once more gives the same text.
  Job again = *read;
  CHECK(job_file_text(again, "1.2.3") == text);
}

TEST_CASE("the smallest job survives too") {
  Job job;
  job.argv = {"true"};
  job.workdir = "/";
  job.size = 1;
  Host host;
  host.name = host.address = "h";
  host.source = "-H";
  job.hosts = {host};
  const auto read = parse_job_file(job_file_text(job, ""), "job.toml");
  REQUIRE_MESSAGE(read.ok(), read.error().text);
  check_same(job, *read);
}

TEST_CASE("no secret is written") {
  Job job = example();
  job.secret = "job-secret";
  const std::string text = job_file_text(job, "1");
  CHECK(text.find("s3cr3t") == std::string::npos);
  CHECK(text.find("never") == std::string::npos);
  CHECK(text.find("SECRET") == std::string::npos);
  CHECK(text.find("job-secret") == std::string::npos);
}

TEST_CASE("what does not fit is an error with its place") {
  CHECK(error("") == "job.toml:1:1: the key 'format' is missing");
  CHECK(error(changed("format = 1", "format = 2")) ==
        "job.toml:3:10: format 2 is another version's: expected 1");
  CHECK(error(changed("size = 7", "sise = 7")) ==
        "job.toml:7:1: unknown key 'sise': did you mean 'size'?");
  CHECK(error(changed("size = 7", "size = 0")) ==
        "job.toml:7:8: size is 0: expected a whole number from 1 to 1000000");
  CHECK(error(changed("size = 7", "size = \"7\"")) ==
        "job.toml:7:8: size expects a whole number from 1 to 1000000, not a string");
  CHECK(error(changed("size = 7\n", "")) == "job.toml:1:1: the key 'size' is missing");
  CHECK(error(changed("checkpoint-dir = \"/shared/ckpt\"", "checkpoint-dir = \"ckpt\"")) ==
        "job.toml:19:18: checkpoint-dir expects a path that begins with '/'");
  CHECK(error(changed("grace = \"0.000000000s\"", "grace = \"x\""))
            .starts_with("job.toml:11:9: grace: 'x' is not a duration"));
  CHECK(error(changed("\"train\", \"\"", "\"train\", 1")) ==
        "job.toml:5:21: an entry of command expects a string, such as \"text\", not an integer");
  CHECK(error(changed("hex = \"", "hex = \"0")).find("hex expects pairs") != std::string::npos);
  CHECK(error(changed("name = \"gpu01\"", "name = \"gpu[01-02]\"")).find("for 2 hosts") !=
        std::string::npos);
  CHECK(error(changed("name = \"fd00::2\"", "name = \"localhost\""))
            .find("'localhost' is named twice") != std::string::npos);
  CHECK(error(changed("slots = 5", "lots = 5")).find("did you mean 'slots'?") != std::string::npos);
}

TEST_CASE("no text brings the reader down") {
  const std::string good = job_file_text(example(), "1.2.3");
  const std::string parts = "[]{}\"'=.,:#\\-\n 019azAZ\x80\xff";
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text.erase(at, 1 + random() % 6);
      } else {
        text.insert(at, 1, parts[random() % parts.size()]);
      }
    }
    const std::string result = error(text);
    CHECK_MESSAGE((result == "no error" || result.starts_with("job.toml:")), result);
  }
}

// What a launcher leaves behind for the next one: the journal, the lock, and what was shown.
#include "launcher/journal.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "launcher/shown_table.h"

using namespace hvd;

namespace {

// A home of the test's own.
class Home {
 public:
  Home() {
    char path[] = "/tmp/hvd-journal-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    path_ = path;
    setenv("XDG_STATE_HOME", path, 1);
  }
  ~Home() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::string path_;
};

Job small_job() {
  Job job;
  job.id = "20260101-000000-abcdef";
  job.size = 2;
  job.argv = {"train", "\xff byte"};
  job.workdir = "/data";
  job.launched_on = "login1";
  job.survive = std::chrono::seconds(60);
  Host host;
  host.name = "h1";
  host.slots = 2;
  job.hosts = {host};
  return job;
}

}  // namespace

TEST_CASE("a journal is read as it was written, and anything else is refused by its path") {
  Journal journal;
  journal.job_file = "command = [\"\\u00ff\"] \xff";
  journal.settings.style.prefix_template = "{rank}\xfe";
  journal.settings.only_ranks = {1, 5};
  journal.settings.log_dir = "/logs";
  journal.settings.verbosity = -1;
  journal.allocation = "77";
  journal.resumable = true;
  journal.began = 12345;
  journal.memory.attempt = 3;
  journal.memory.hosts = {1, 0};
  journal.memory.ledger = {{2, true}, {0, false}};
  journal.memory.budget = {1, 2, 3, 4, 5};
  journal.memory.folder = FolderKind::separate;
  journal.memory.known = {10, 20};
  journal.memory.foreign_path = "/ckpt/\xff";
  const std::string text = journal_text(journal);
  const auto read = parse_journal(text, "journal.json");
  REQUIRE(read.ok());
  CHECK(read->job_file == journal.job_file);
  CHECK(read->settings.style.prefix_template == journal.settings.style.prefix_template);
  CHECK(read->settings.only_ranks == journal.settings.only_ranks);
  CHECK(read->settings.verbosity == -1);
  CHECK(read->allocation == "77");
  CHECK(read->began == 12345);
  CHECK((read->memory == journal.memory));
  for (const std::string& broken :
       {std::string(), std::string("[]"), std::string("{}"), text.substr(0, text.size() / 2)}) {
    const auto refused = parse_journal(broken, "journal.json");
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().text.starts_with("journal.json: "));
  }
}

TEST_CASE("one launcher at a time has a job, and one that stands still gives way") {
  const Home home;
  const StateFolder state;
  const Job job = small_job();
  int news[2];
  REQUIRE(pipe(news) == 0);
  const pid_t other = fork();
  REQUIRE(other >= 0);
  if (other == 0) {
    const auto watch = begin_watch(state, job, {});
    const char byte = watch.ok() ? 'y' : 'n';
    static_cast<void>(!write(news[1], &byte, 1));
    while (true) pause();
  }
  char byte = 0;
  REQUIRE(read(news[0], &byte, 1) == 1);
  REQUIRE(byte == 'y');
  CHECK(surviving_jobs(state) == std::vector<std::string>{job.id});
  const auto refused = lock_job(state, job.id);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().text.starts_with("job " + job.id + " is watched by process " +
                                         std::to_string(other) + " on "));
  kill(other, SIGSTOP);
  REQUIRE(waitpid(other, nullptr, WUNTRACED) == other);
  CHECK(lock_job(state, job.id).ok());
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  const auto lock = lock_job(state, job.id);
  CHECK(lock.ok());
  CHECK(read_journal(state, job.id).ok());
  CHECK(remove_watch(state, job.id).ok());
  CHECK(surviving_jobs(state).empty());
  close(news[0]);
  close(news[1]);
}

TEST_CASE("what was shown is there for the next launcher, of two attempts") {
  const Home home;
  const std::string path = std::string(std::getenv("XDG_STATE_HOME")) + "/shown";
  {
    auto table = ShownTable::open(path, 3);
    REQUIRE(table.ok());
    *table->begin(1, 2, Stream::out, 0) = 100;
    *table->begin(2, 2, Stream::out, 0) = 7;
    CHECK(table->begin(2, 3, Stream::out, 0) == nullptr);
  }
  auto table = ShownTable::open(path, 3);
  REQUIRE(table.ok());
  CHECK(table->shown(1, 2, Stream::out) == 100);
  CHECK(table->shown(2, 2, Stream::out) == 7);
  CHECK(table->shown(2, 2, Stream::err) == 0);
  table->begin(3, 2, Stream::out, 0);
  CHECK(table->shown(1, 2, Stream::out) == 0);
}

#include "launcher/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "launcher/job_file.h"

namespace hvd {

namespace {

using Json = nlohmann::json;

constexpr size_t kLongestJournal = 64u << 20;
constexpr size_t kLongestName = 4096;
constexpr const char* kJournal = "journal.json";
constexpr const char* kWatcher = "watcher";
constexpr const char* kShown = "shown";

// Bytes that are no text travel as numbers.
Json bytes_json(const std::string& bytes) {
  return Json(std::vector<uint8_t>(bytes.begin(), bytes.end()));
}

std::string bytes_of(const Json& json) {
  const auto bytes = json.get<std::vector<uint8_t>>();
  return {bytes.begin(), bytes.end()};
}

Json settings_json(const LaunchSettings& s) {
  return {{"timestamps", s.style.timestamps},
          {"prefix", s.style.prefix},
          {"prefix_template", bytes_json(s.style.prefix_template)},
          {"only_ranks", s.only_ranks},
          {"fold", s.fold},
          {"log_dir", bytes_json(s.log_dir)},
          {"logged_before", s.logged_before},
          {"verbosity", s.verbosity},
          {"accept_new_host_keys", s.accept_new_host_keys}};
}

LaunchSettings settings_of(const Json& j) {
  LaunchSettings s;
  s.style.timestamps = j.at("timestamps").get<bool>();
  s.style.prefix = j.at("prefix").get<bool>();
  s.style.prefix_template = bytes_of(j.at("prefix_template"));
  s.only_ranks = j.at("only_ranks").get<std::set<uint32_t>>();
  s.fold = j.at("fold").get<bool>();
  s.log_dir = bytes_of(j.at("log_dir"));
  s.logged_before = j.at("logged_before").get<uint32_t>();
  s.verbosity = j.at("verbosity").get<int>();
  s.accept_new_host_keys = j.at("accept_new_host_keys").get<bool>();
  return s;
}

Json memory_json(const JobMemory& m) {
  Json ledger = Json::array();
  for (const HostMemory& host : m.ledger) ledger.push_back({host.failures, host.excluded});
  return {{"attempt", m.attempt},
          {"attempts_started", m.attempts_started},
          {"between", m.between},
          {"stop_signal", m.stop_signal},
          {"hosts", m.hosts},
          {"ledger", ledger},
          {"budget", m.budget},
          {"same_endings", m.same_endings},
          {"other_port_tried", m.other_port_tried},
          {"separate_folders", m.folder == FolderKind::separate},
          {"known", m.known},
          {"verified", m.verified},
          {"rejected", m.rejected},
          {"resumed_step", m.resumed_step},
          {"resumed", m.resumed},
          {"committed_ever", m.committed_ever},
          {"had_checkpoint", m.had_checkpoint},
          {"foreign_path", bytes_json(m.foreign_path)},
          {"foreign_step", m.foreign_step},
          {"reached_step", m.reached_step}};
}

JobMemory memory_of(const Json& j) {
  JobMemory m;
  m.attempt = j.at("attempt").get<uint32_t>();
  m.attempts_started = j.at("attempts_started").get<uint32_t>();
  m.between = j.at("between").get<bool>();
  m.stop_signal = j.at("stop_signal").get<int>();
  m.hosts = j.at("hosts").get<std::vector<uint32_t>>();
  for (const Json& host : j.at("ledger")) {
    m.ledger.push_back({host.at(0).get<uint32_t>(), host.at(1).get<bool>()});
  }
  m.budget = j.at("budget").get<RestartBudget::Used>();
  m.same_endings = j.at("same_endings").get<uint32_t>();
  m.other_port_tried = j.at("other_port_tried").get<bool>();
  m.folder = j.at("separate_folders").get<bool>() ? FolderKind::separate : FolderKind::shared;
  m.known = j.at("known").get<std::vector<uint64_t>>();
  m.verified = j.at("verified").get<std::vector<uint64_t>>();
  m.rejected = j.at("rejected").get<std::vector<uint64_t>>();
  m.resumed_step = j.at("resumed_step").get<uint64_t>();
  m.resumed = j.at("resumed").get<bool>();
  m.committed_ever = j.at("committed_ever").get<bool>();
  m.had_checkpoint = j.at("had_checkpoint").get<bool>();
  m.foreign_path = bytes_of(j.at("foreign_path"));
  m.foreign_step = j.at("foreign_step").get<uint64_t>();
  m.reached_step = j.at("reached_step").get<uint64_t>();
  return m;
}

// "123 on login1": of a process of this machine that is stopped.
bool is_stopped_here(const std::string& watcher) {
  const std::string mark = "process ", on = " on ";
  const size_t at = watcher.find(on);
  if (!watcher.starts_with(mark) || at == std::string::npos) return false;
  const std::string number = watcher.substr(mark.size(), at - mark.size());
  const std::string own = own_name();
  if (own.substr(own.find(on)) != watcher.substr(at)) return false;
  if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos) return false;
  const Result<std::string> stat = read_file("/proc/" + number + "/stat", kLongestName);
  const size_t name_end = stat ? stat->rfind(')') : std::string::npos;
  return name_end != std::string::npos && name_end + 2 < stat->size() &&
         (*stat)[name_end + 2] == 'T';
}

// The lock file that has this name now, locked by us; none if somebody else has it.
Fd try_lock(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd || flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return Fd();
  struct stat ours, named;
  const bool same = fstat(fd.get(), &ours) == 0 && stat(path.c_str(), &named) == 0 &&
                    ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
  return same ? std::move(fd) : Fd();
}

}  // namespace

std::string journal_text(const Journal& journal) {
  const Json json = {{"job", bytes_json(journal.job_file)},
                     {"settings", settings_json(journal.settings)},
                     {"allocation", journal.allocation},
                     {"resumable", journal.resumable},
                     {"began", journal.began},
                     {"memory", memory_json(journal.memory)}};
  return json.dump() + "\n";
}

Result<Journal> parse_journal(std::string_view text, const std::string& path) {
  try {
    const Json json = Json::parse(text);
    Journal journal;
    journal.job_file = bytes_of(json.at("job"));
    journal.settings = settings_of(json.at("settings"));
    journal.allocation = json.at("allocation").get<std::string>();
    journal.resumable = json.at("resumable").get<bool>();
    journal.began = json.at("began").get<int64_t>();
    journal.memory = memory_of(json.at("memory"));
    return journal;
  } catch (const Json::exception& e) {
    return Error{path + ": it is no journal of this version of hvdlaunch: " + e.what()};
  }
}

Result<Fd> lock_job(const StateFolder& state, const std::string& job) {
  const std::string path = state.job_file(job, kWatcher);
  Fd lock = try_lock(path);
  if (!lock) {
    const Result<std::string> holder = read_file(path, kLongestName);
    const std::string watcher = holder ? holder->substr(0, holder->find('\n')) : "a process";
    // It could not be asked to let go.
    if (is_stopped_here(watcher) && unlink(path.c_str()) == 0) lock = try_lock(path);
    if (!lock) return Error{"job " + job + " is watched by " + watcher};
  }
  const std::string text = own_name() + "\n";
  if (ftruncate(lock.get(), 0) != 0 || !write_all(lock.get(), text)) {
    return errno_error("cannot write " + path, errno);
  }
  return lock;
}

Result<Watch> begin_watch(const StateFolder& state, const Job& job,
                          const LaunchSettings& settings) {
  if (state.jobs_folder().empty())
    return Error{"--survive: there is no home for the job's journal"};
  const std::string path = state.job_file(job.id, kJournal);
  const Status made = make_folders(path.substr(0, path.rfind('/')), 0700);
  if (!made) return made.error();
  Result<Fd> lock = lock_job(state, job.id);
  if (!lock) return lock.error();
  Result<Watch> watch = go_on_watching(state, job.id, job.size, std::move(*lock));
  if (!watch) return watch;
  Journal& journal = watch->journal;
  journal.job_file = job.job_file.empty() ? job_file_text(job, "") : job.job_file;
  journal.settings = settings;
  journal.allocation = job.allocation;
  journal.resumable = !job.job_file.empty();
  journal.began = std::time(nullptr);
  const Status written = replace_file(path, journal_text(journal), 0600);
  if (!written) return written.error();
  return watch;
}

Result<Watch> go_on_watching(const StateFolder& state, const std::string& job, uint32_t ranks,
                             Fd lock) {
  Watch watch;
  watch.lock = std::move(lock);
  Result<ShownTable> shown = ShownTable::open(state.job_file(job, kShown), ranks);
  if (!shown) return shown.error();
  watch.shown = std::move(*shown);
  return watch;
}

Status remove_watch(const StateFolder& state, const std::string& job) {
  for (const char* name : {kJournal, kShown, kWatcher}) {
    const std::string path = state.job_file(job, name);
    if (unlink(path.c_str()) != 0 && errno != ENOENT) {
      return errno_error("cannot remove " + path, errno);
    }
  }
  return Ok{};
}

std::vector<std::string> surviving_jobs(const StateFolder& state) {
  namespace fs = std::filesystem;
  std::vector<std::string> jobs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(state.jobs_folder(), ignored)) {
    const std::string name = entry.path().filename();
    if (access(state.job_file(name, kJournal).c_str(), F_OK) == 0) jobs.push_back(name);
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

Result<Journal> read_journal(const StateFolder& state, const std::string& job) {
  const std::string path = state.job_file(job, kJournal);
  const Result<std::string> text = read_own_file(path, kLongestJournal);
  if (!text) return text.error();
  return parse_journal(*text, path);
}

}  // namespace hvd

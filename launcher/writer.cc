#include "launcher/writer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

#include "launcher/log_folder.h"

namespace hvd {

namespace {
// Open log files are kept; beyond this many all are closed and opened again on need.
constexpr size_t kOpenFiles = 512;
constexpr int kPipe = 64 << 10;
constexpr int kWidePipe = 256 << 10;

Status put_in_place(const std::string& draft, const std::string& path) {
  if (rename(draft.c_str(), path.c_str()) == 0) return Ok{};
  const int number = errno;
  unlink(draft.c_str());
  return errno_error("cannot write", number);
}

// 0, or the errno that ended it. A descriptor that others have made non-blocking is waited for.
int print_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd room{fd, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

Writer::Writer() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  HVD_CHECK(event_.valid());
}

void Writer::start_thread() {
  // Signals are the loop's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Writer::~Writer() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  more_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Writer::push(Item item) {
  // A job that says nothing needs no thread.
  if (!thread_.joinable()) start_thread();
  {
    const std::lock_guard lock(mutex_);
    // Many small pieces for one file become one write.
    if (item.kind == Item::Kind::append && !queue_.empty() &&
        queue_.back().kind == Item::Kind::append && queue_.back().path == item.path) {
      queue_.back().bytes += item.bytes;
      item.credit.bytes += queue_.back().credit.bytes;
      queue_.back().credit = item.credit;
      return;
    }
    queue_.push_back(std::move(item));
  }
  more_.notify_one();
}

void Writer::print(Stream stream, std::string text, Written credit) {
  push(Item{Item::Kind::print, stream, {}, std::move(text), credit});
}

void Writer::append(const std::string& path, std::string bytes, Written credit) {
  push(Item{Item::Kind::append, Stream::out, path, std::move(bytes), credit});
}

void Writer::claim(const std::string& dir, uint32_t number) {
  push(Item{Item::Kind::claim, Stream::out, dir, {}, {}, number});
}

void Writer::link(const std::string& path, const std::string& target) {
  push(Item{Item::Kind::link, Stream::out, path, target, {}});
}

void Writer::replace(const std::string& path, std::string bytes) {
  push(Item{Item::Kind::replace, Stream::out, path, std::move(bytes), {}});
}

void Writer::perform(const std::string& path, std::function<Status()> task) {
  push(Item{Item::Kind::perform, Stream::out, path, {}, {}, 0, std::move(task)});
}

void Writer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    more_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    item.path = place_of(item.path);
    path_ = item.path;
    since_ = now();
    lock.unlock();
    write(item);
    lock.lock();
    busy_ = false;
    if (item.credit.bytes > 0) written_.push_back(item.credit);
    // Who has not taken the news before these knows already that there are some.
    if (written_.size() != 1 && !queue_.empty()) continue;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof one);
  }
}

// Much output is taken in fewer turns by a reader whose pipe holds more.
void Writer::widen_stdout() {
  if (!wide_ && fcntl(STDOUT_FILENO, F_GETPIPE_SZ) == kPipe) {
    fcntl(STDOUT_FILENO, F_SETPIPE_SZ, kWidePipe);
  }
  wide_ = true;
}

void Writer::write(Item& item) {
  if (item.kind == Item::Kind::print) {
    if (item.stream == Stream::out && item.bytes.size() >= kPipe) widen_stdout();
    const int error =
        print_all(item.stream == Stream::out ? STDOUT_FILENO : STDERR_FILENO, item.bytes);
    if (item.credit.mark != nullptr && error == 0) {
      std::atomic_ref(*item.credit.mark).store(item.credit.shown, std::memory_order_relaxed);
    }
    const std::lock_guard lock(mutex_);
    int& broken = broken_[static_cast<size_t>(item.stream)];
    if (broken == 0) broken = error;
    return;
  }
  const Status status = item.task ? item.task() : write_file(item);
  if (status) return;
  const std::lock_guard lock(mutex_);
  bool& known = item.kind == Item::Kind::link ? link_failed_ : incomplete_;
  if (std::exchange(known, true)) return;
  error_ += (error_.empty() ? "" : "; ") + (item.task ? "" : item.path + ": ");
  error_ += status.error().text;
}

Status Writer::write_file(const Item& item) {
  if (item.kind == Item::Kind::append) return append_file(item);
  if (item.kind == Item::Kind::link) return link_file(item);
  if (item.kind == Item::Kind::claim) return claim_folder(item);
  const std::string draft = item.path + ".tmp";
  const Fd fd(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return errno_error("cannot write", errno);
  if (Status status = write_all(fd.get(), item.bytes); !status) return status;
  return put_in_place(draft, item.path);
}

Status Writer::link_file(const Item& item) {
  const std::string folder = claimed(item.path.substr(0, item.path.rfind('/') + 1) + item.bytes);
  if (folder.empty()) return Ok{};
  struct stat st;
  if (lstat(item.path.c_str(), &st) == 0 && !S_ISLNK(st.st_mode)) {
    return Error{"what stands there is no link and stays"};
  }
  // Another run may be linking too.
  const std::string draft = item.path + ".tmp" + std::to_string(getpid());
  const std::string target = folder.substr(folder.rfind('/') + 1);
  unlink(draft.c_str());
  if (symlink(target.c_str(), draft.c_str()) != 0) return errno_error("cannot link", errno);
  return put_in_place(draft, item.path);
}

Status Writer::claim_folder(const Item& item) {
  const Result<uint32_t> number = claim_log_number(item.path, item.number);
  folders_[item.path + "/" + log_folder_name(item.number)] =
      number ? item.path + "/" + log_folder_name(*number) : "";
  if (!number) return number.error();
  return Ok{};
}

std::string Writer::claimed(const std::string& folder) const {
  const auto found = folders_.find(folder);
  return found == folders_.end() ? folder : found->second;
}

// Where a file goes; empty: nowhere, since its folder could not be made.
std::string Writer::place_of(const std::string& path) const {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return path;
  const std::string folder = claimed(path.substr(0, slash));
  return folder.empty() && slash > 0 ? "" : folder + path.substr(slash);
}

Status Writer::append_file(const Item& item) {
  if (item.path.empty()) return Ok{};
  if (files_.size() > kOpenFiles) files_.clear();
  Fd& fd = files_[item.path];
  if (!fd) {
    const size_t slash = item.path.rfind('/');
    const Status made =
        slash == std::string::npos ? Ok{} : make_folders(item.path.substr(0, slash), 0777);
    if (!made) return made;
    fd = Fd(open(item.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  }
  if (!fd) return errno_error("cannot write", errno);
  return write_all(fd.get(), item.bytes);
}

std::vector<Written> Writer::take_written() {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = read(event_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(written_, {});
}

int Writer::broken(Stream stream) const {
  const std::lock_guard lock(mutex_);
  return broken_[static_cast<size_t>(stream)];
}

bool Writer::idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !busy_;
}

std::string Writer::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, {});
}

bool Writer::incomplete() const {
  const std::lock_guard lock(mutex_);
  return incomplete_;
}

std::string Writer::take_stuck(Time now, Duration limit) {
  const std::lock_guard lock(mutex_);
  if (!busy_ || path_.empty() || stuck_told_ || now - since_ < limit) return {};
  stuck_told_ = true;
  return path_;
}

std::optional<Time> Writer::stuck_at(Duration limit) const {
  const std::lock_guard lock(mutex_);
  if (!busy_ || path_.empty() || stuck_told_) return std::nullopt;
  return since_ + limit;
}

}  // namespace hvd

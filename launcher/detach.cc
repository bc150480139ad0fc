#include "launcher/detach.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/exit_codes.h"
#include "base/fd.h"

namespace hvd {

namespace {

// The child's: its own session, and no descriptor of whoever typed the command.
void leave_terminal(int output) {
  setsid();
  std::signal(SIGHUP, SIG_IGN);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null) dup2(null.get(), STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
}

// Until the ranks run, a signal that ends whoever waits for them stops the launch too.
void end_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kExitSignalBase + SIGTERM);
}

void tell(const std::string& text) {
  std::fputs(("hvdlaunch: " + text + "\n").c_str(), stderr);
}

off_t size_of(const Fd& file) {
  struct stat st;
  return fstat(file.get(), &st) == 0 ? st.st_size : 0;
}

// The whole lines at the end of what stands behind `begin`, of at most so many bytes.
std::string last_words(const Fd& file, off_t begin) {
  constexpr off_t kMost = 64 << 10;
  const off_t end = size_of(file);
  // A byte more: the one before a whole line is the end of another.
  const bool cut = end - begin > kMost;
  if (cut) begin = end - kMost - 1;
  std::string text(static_cast<size_t>(std::max<off_t>(end - begin, 0)), 0);
  const ssize_t n = pread(file.get(), text.data(), text.size(), begin);
  text.resize(n < 0 ? 0 : static_cast<size_t>(n));
  const size_t line = cut ? text.find('\n') : std::string::npos;
  return line == std::string::npos ? text : text.substr(line + 1);
}

// The launch ended before the ranks ran: its words and its code are the parent's.
int pass_on(pid_t child, const Fd& output, off_t begin) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string text = last_words(output, begin);
  std::fwrite(text.data(), 1, text.size(), stderr);
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitSignalBase + WTERMSIG(status);
}

}  // namespace

int run_detached(const std::string& output, const std::function<std::string(int pid)>& greeting,
                 const std::function<int(std::function<void()> started)>& launch) {
  const Fd file(open(output.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file) {
    tell(errno_error("cannot write " + output, errno).text);
    return kExitUsage;
  }
  // Earlier jobs may have written to it.
  const off_t begin = size_of(file);
  Result<Pipe> news = make_pipe();
  const pid_t parent = getpid();
  const pid_t child = news ? fork() : -1;
  if (child < 0) {
    tell(news ? errno_error("cannot go to the background", errno).text : news.error().text);
    return kExitOwnFailure;
  }
  if (child == 0) {
    end_with(parent);
    news->read.reset();
    leave_terminal(file.get());
    return launch([&news] {
      prctl(PR_SET_PDEATHSIG, 0);
      [[maybe_unused]] const ssize_t n = write(news->write.get(), "1", 1);
      news->write.reset();
    });
  }
  news->write.reset();
  char byte;
  ssize_t n;
  while ((n = read(news->read.get(), &byte, 1)) < 0 && errno == EINTR) {
  }
  if (n != 1) return pass_on(child, file, begin);
  tell(greeting(child));
  return 0;
}

}  // namespace hvd

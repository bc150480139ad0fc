// A worker for tests of the agent: performs its arguments one after the other and prints what
// happened, one line each.
//
//   join   join-attempt N   step N   shrink   exchange ROUND BLOB   exchange-all   saved STEP abort
//   CODE finalize await-failure   garbage   eof   notify TEXT   listen   say TEXT   fill   wait
//   keep STEP   keep-nothing STEP   exit CODE
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/fd.h"
#include "base/frame.h"
#include "base/message.h"

namespace {

using namespace hvd;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

uint32_t number(const char* name) {
  return static_cast<uint32_t>(std::strtoul(variable(name).c_str(), nullptr, 10));
}

void say(const std::string& line) {
  static_cast<void>(write_all(1, line + "\n"));
}

// As much as the two pipes can hold, which are made as large as they get.
void fill() {
  for (const int fd : {1, 2}) {
    fcntl(fd, F_SETPIPE_SZ, 1 << 20);
    static_cast<void>(
        write_all(fd, std::string(static_cast<size_t>(fcntl(fd, F_GETPIPE_SZ)), 'x')));
  }
}

class TestWorker {
 public:
  void join(uint32_t attempt) {
    socket_ = Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(variable("HVD_AGENT_SOCKET"));
    if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      say("no connection");
      return;
    }
    page_ = Fd(memfd_create("progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (ftruncate(page_.get(), sizeof(ProgressPage)) != 0) say("no page");
    send_beside(to_frame(FromWorker(Join{kProtocol, attempt, number("HVD_RANK")})), page_);
    const auto welcome = receive<Welcome>();
    if (!welcome) return say("not welcome");
    if (!welcome->kept.empty()) {
      char text[64] = "";
      const bool read = pread(beside_.get(), text, sizeof text - 1, 0) > 0;
      say("goes on from step " + std::to_string(welcome->kept[0].step) + " of rank " +
          std::to_string(welcome->kept[0].shard.rank) + ": " + (read ? text : "nothing"));
    }
    say("welcome rank=" + std::to_string(welcome->rank) + " size=" + std::to_string(welcome->size) +
        " local=" + std::to_string(welcome->local_rank) + "/" +
        std::to_string(welcome->local_size) + " address=" + welcome->data_address +
        " secret=" + welcome->secret);
  }

  void step(uint64_t step) {
    const ProgressPage page{step, 1, 0};
    if (pwrite(page_.get(), &page, sizeof page, 0) != sizeof page) say("no step");
  }
  // It says that it saves a checkpoint.
  void save() {
    const uint64_t on = 1;
    constexpr off_t kPlace = offsetof(ProgressPage, storage);
    if (pwrite(page_.get(), &on, sizeof on, kPlace) != sizeof on) say("no save");
  }
  void shrink() { static_cast<void>(!ftruncate(page_.get(), 0)); }

  // Memory that says whose it is.
  void keep(uint64_t step, bool with_memory) {
    const std::string text = "state " + std::to_string(step) + " of " + variable("HVD_RANK");
    const Fd memory(memfd_create("kept", MFD_CLOEXEC));
    static_cast<void>(write_all(memory.get(), text));
    const ShardKept kept{55, step, Shard{44, text.size(), "digest", "s", false}, ""};
    if (with_memory) return send_beside(to_frame(FromWorker(kept)), memory);
    send(kept);
  }

  void send(const FromWorker& message) { send_bytes(to_frame(message)); }
  void send_bytes(const std::string& bytes) {
    static_cast<void>(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }

  void exchange(uint32_t round, const std::string& blob) {
    // The agent must not believe whose blob it is said to be.
    send(ExchangeBlob{77, 66, round, blob});
    const auto result = receive<ExchangeResult>();
    std::string line = "exchanged";
    for (const std::string& one : result ? result->blobs : std::vector<std::string>{"nothing"}) {
      line += " " + one;
    }
    say(line);
  }

  // Says only how many ranks gave a blob of their own.
  void exchange_all() {
    send(ExchangeBlob{0, 0, 0, "of " + variable("HVD_RANK")});
    const auto result = receive<ExchangeResult>();
    const std::vector<std::string> blobs = result ? result->blobs : std::vector<std::string>{};
    size_t right = 0;
    for (size_t rank = 0; rank < blobs.size(); ++rank) {
      right += blobs[rank] == "of " + std::to_string(rank) ? 1 : 0;
    }
    say("all " + std::to_string(right) + " there");
  }

  // Sends and does not wait for the result.
  void blob(size_t bytes) { send(ExchangeBlob{0, 0, 1, std::string(bytes, 'b')}); }

  void await_failure() {
    const auto failed = receive<PeerFailed>();
    say(failed ? "peer " + std::to_string(failed->rank) + " failed: " + failed->reason : "no news");
  }

  void await_eof() { say(receive<Welcome>() ? "welcome again" : "closed"); }

  void notify(const std::string& text) {
    const Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(variable("NOTIFY_SOCKET"));
    const bool sent = sendto(fd.get(), text.data(), text.size(), 0,
                             reinterpret_cast<const sockaddr*>(&address), sizeof address) >= 0;
    if (!sent) say("not notified");
  }

  void listen_on_master_port() {
    listener_ = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(number("MASTER_PORT")));
    const bool bound =
        bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
        listen(listener_.get(), 8) == 0;
    say(bound ? "listening" : std::string("cannot listen: ") + std::strerror(errno));
  }

 private:
  static sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    return address;
  }

  void send_beside(const std::string& bytes, const Fd& descriptor) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = descriptor.get();
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
  }

  // The next message if it is an M; none at the end of the connection.
  template <class M>
  std::optional<M> receive() {
    while (true) {
      if (const auto body = reader_.next()) {
        const auto message = parse_to_worker(*body);
        if (!message || !std::holds_alternative<M>(*message)) return std::nullopt;
        return std::get<M>(*message);
      }
      char block[4096];
      iovec part{block, sizeof block};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      msghdr header{};
      header.msg_iov = &part;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = sizeof control;
      const ssize_t n = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
      if (n <= 0) return std::nullopt;
      if (const cmsghdr* rights = CMSG_FIRSTHDR(&header)) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
        beside_.reset(fd);
      }
      reader_.feed({block, static_cast<size_t>(n)});
    }
  }

  Fd socket_, page_, listener_;
  Fd beside_;  // the descriptor that came last
  FrameReader reader_;
};

}  // namespace

int main(int argc, char** argv) {
  TestWorker worker;
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  sigprocmask(SIG_BLOCK, &usr1, nullptr);
  const auto next = [&](int& i) { return std::string(++i < argc ? argv[i] : ""); };
  const auto next_number = [&](int& i) { return std::strtoull(next(i).c_str(), nullptr, 10); };
  for (int i = 1; i < argc; ++i) {
    const std::string verb = argv[i];
    if (verb == "join") worker.join(number("HVD_ATTEMPT"));
    if (verb == "join-attempt") worker.join(static_cast<uint32_t>(next_number(i)));
    if (verb == "step") worker.step(next_number(i));
    if (verb == "save") worker.save();
    if (verb == "shrink") worker.shrink();
    if (verb == "exchange") {
      const auto round = static_cast<uint32_t>(next_number(i));
      worker.exchange(round, next(i) + variable("HVD_RANK"));
    }
    if (verb == "exchange-all") worker.exchange_all();
    if (verb == "blob") worker.blob(next_number(i));
    if (verb == "await-usr1") sigwaitinfo(&usr1, nullptr);
    if (verb == "saved") {
      worker.send(ShardSaved{55, next_number(i), Shard{44, 10, "d", "s", false}, "note", ""});
    }
    if (verb == "keep") worker.keep(next_number(i), true);
    if (verb == "keep-nothing") worker.keep(next_number(i), false);
    if (verb == "abort")
      worker.send(WorkerAborted{9, 9, static_cast<int32_t>(next_number(i)), "why"});
    if (verb == "finalize") worker.send(Finalized{});
    if (verb == "await-failure") worker.await_failure();
    if (verb == "garbage") worker.send_bytes(std::string("\4\0\0\0\77\1\2\3", 8));
    if (verb == "eof") worker.await_eof();
    if (verb == "notify") worker.notify(next(i));
    if (verb == "listen") worker.listen_on_master_port();
    if (verb == "say") say(next(i));
    if (verb == "fill") fill();
    if (verb == "wait") pause();
    if (verb == "exit") return static_cast<int>(next_number(i));
  }
  return 0;
}

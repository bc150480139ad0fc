// Sockets of an agent that others reach: its launcher's stream, its workers' socket, and the
// listener of proofs with the dials to others. The first byte is which of them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "supervisor/agent/address_proof.h"
#include "supervisor/agent/launcher_link.h"
#include "supervisor/agent/worker_socket.h"
#include "tests/fuzz/fuzz.h"
#include "tests/loopback.h"

using namespace hvd;
using namespace hvd::fuzz;
using hvd::test::loopback;
using namespace std::chrono_literals;

namespace {

constexpr size_t kMost = 60'000;  // fits any socket's buffer at once
const Time kNow{1000s};

void check_launcher(std::string_view bytes) {
  auto pipe = make_pipe(), out = make_pipe();
  HVD_CHECK(pipe.ok() && out.ok() && write_all(pipe->write.get(), bytes).ok());
  pipe->write.reset();
  Poller poller;
  LauncherLink link(poller, pipe->read.get(), out->write.get());
  size_t messages = 0;
  while (!link.ended()) messages += link.receive().size();
  HVD_CHECK(messages <= bytes.size() / 5);
  if (!link.complaint().empty()) check_sentence(link.complaint(), "the launcher ");
}

// Rank 1 of attempt 3 may join; whatever comes is stamped with that.
void check_worker(std::string_view bytes) {
  const std::string path = "/tmp/hvd-fuzz-" + std::to_string(getpid());
  Poller poller;
  auto server = WorkerSocket::open(poller, path);
  HVD_CHECK(server.ok());
  std::vector<Guest> guests(1);
  guests[0].welcome.attempt = 3;
  guests[0].welcome.rank = 1;
  server->begin(3, std::move(guests));
  Fd worker(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  HVD_CHECK(connect(worker.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  unlink(path.c_str());
  HVD_CHECK(write_all(worker.get(), bytes).ok());
  shutdown(worker.get(), SHUT_WR);
  server->accept_waiting(kNow);
  for (int i = 0; i < 4; ++i) {
    for (const WorkerNews& news : server->receive(1)) {
      HVD_CHECK(news.rank == 1);
      if (const auto* m = std::get_if<ExchangeBlob>(&news.message)) {
        HVD_CHECK(m->attempt == 3 && m->rank == 1);
      }
      if (const auto* m = std::get_if<ShardSaved>(&news.message)) {
        HVD_CHECK(m->attempt == 3 && m->shard.rank == 1);
      }
      if (const auto* m = std::get_if<ShardKept>(&news.message)) {
        HVD_CHECK(m->attempt == 3 && m->shard.rank == 1);
      }
    }
  }
  server->expire(kNow + 11s);
  for (const std::string& notice : server->take_notices()) check_sentence(notice, "");
}

// A caller that does not show the nonce hears nothing.
void check_caller(std::string_view bytes) {
  Poller poller;
  AddressProof proof(poller, 7);
  const ProofOpened opened = proof.open({1, std::string(32, 'c') + std::string(32, 'a')});
  HVD_CHECK(opened.error.empty());
  const Fd caller(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(opened.port);
  HVD_CHECK(connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
            0);
  const linger none{1, 0};
  setsockopt(caller.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
  HVD_CHECK(send(caller.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  proof.accept_waiting(kNow);
  proof.caller_ready(1);
  char heard[64];
  const ssize_t n = recv(caller.get(), heard, sizeof heard, MSG_DONTWAIT);
  if (n > 0) HVD_CHECK(bytes.find(std::string(32, 'c')) != std::string_view::npos);
  proof.expire(kNow + 6s);
  HVD_CHECK(!proof.deadline());
}

// Whoever answers without the nonce is a stranger.
void check_answer(std::string_view bytes) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  HVD_CHECK(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  HVD_CHECK(listen(listener.get(), 1) == 0);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length);
  Poller poller;
  AddressProof proof(poller, 7);
  proof.dial(
      {1, std::string(64, 'c'), 1'000'000'000, {{8, ntohs(address.sin_port), {"127.0.0.1"}}}},
      kNow);
  const Fd peer(accept(listener.get(), nullptr, nullptr));
  HVD_CHECK(peer.valid());
  static_cast<void>(send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  shutdown(peer.get(), SHUT_WR);
  proof.call_ready(1);
  proof.call_ready(1);
  proof.expire(kNow + 2s);
  const Dialled told = proof.take_results();
  HVD_CHECK(told.results.size() == 1 && told.results[0].host == 8);
  if (told.results[0].end == DialEnd::reached) {
    HVD_CHECK(bytes.find(std::string(32, 'c')) != std::string_view::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = text_of(data, size);
  const uint8_t which = take_byte(text);
  text = text.substr(0, kMost);
  switch (which) {
    case 'l':
      check_launcher(text);
      break;
    case 'w':
      check_worker(text);
      break;
    case 'c':
      check_caller(text);
      break;
    default:
      check_answer(text);
  }
  return 0;
}

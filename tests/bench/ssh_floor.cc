// ssh_floor COMMAND HOST..: logs in on every host at once with plain, blocking libssh, one thread
// each, and runs the command there. What a launch over as many hosts takes at least.
#include <libssh/libssh.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "launcher/ssh_link.h"

namespace {

bool run_on(const char* host, const char* command) {
  ssh_session session = ssh_new();
  ssh_options_set(session, SSH_OPTIONS_HOST, host);
  ssh_channel channel = nullptr;
  bool good = ssh_connect(session) == SSH_OK &&
              ssh_session_is_known_server(session) == SSH_KNOWN_HOSTS_OK &&
              ssh_userauth_publickey_auto(session, nullptr, nullptr) == SSH_AUTH_SUCCESS;
  if (good) {
    channel = ssh_channel_new(session);
    good = ssh_channel_open_session(channel) == SSH_OK &&
           ssh_channel_request_exec(channel, command) == SSH_OK;
    char block[4096];
    while (good && ssh_channel_read(channel, block, sizeof block, 0) > 0) {
    }
    good = good && ssh_channel_get_exit_status(channel) == 0;
  }
  if (!good) std::fprintf(stderr, "ssh_floor: %s: %s\n", host, ssh_get_error(session));
  if (channel != nullptr) ssh_channel_free(channel);
  ssh_disconnect(session);
  ssh_free(session);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  hvd::start_libssh();
  std::atomic<bool> good = true;
  std::vector<std::thread> threads;
  for (int i = 2; i < argc; ++i) {
    threads.emplace_back([&good, command = argv[1], host = argv[i]] {
      if (!run_on(host, command)) good = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return good ? 0 : 1;
}

// Hosts as the user named them. Values; made by launcher/hosts, used by placement and policy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/message.h"

namespace hvd {

// One host of the job. Order in the list is the order of ranks.
struct Host {
  std::string name;      // as written; the identity together with the port
  std::string address;   // where to connect; the name if the user gave no other
  uint16_t port = 0;     // 0: the transport's own
  std::string user;      // empty: the transport's own
  std::string identity;  // private key file, empty: the transport's own
  uint32_t slots = 1;
  bool slots_auto = false;        // slots = "auto": GPUs, else cores, asked of the host
  bool slots_given = false;       // the user wrote a number
  uint32_t max_slots = 0;         // no more than this, whoever asks; 0: no limit
  std::vector<std::string> gpus;  // indices or UUIDs; empty: the host's own view
  Variables env;
  std::string workdir;  // empty: the job's
  Variables labels;
  bool spare = false;  // holds no rank until a host is lost
  bool local = false;  // this machine, reached without a network

  std::string source;  // "hosts.toml:12:1" or "-H", for messages
};

}  // namespace hvd

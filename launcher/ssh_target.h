// Where to log in and what to run there.
#pragma once

#include <memory>
#include <string>

#include "base/time.h"

namespace hvd {

class SshLookup;

// Empty fields follow the user's ssh configuration.
struct SshTarget {
  std::string label;                  // the name the user gave this host, for sentences
  std::string address;                // a name or a numeric address
  int port = 0;                       // 0: the configuration's, else 22
  std::string user;                   // else the configuration's, else the local name
  std::string identity;               // a key file, tried before all others
  std::string known_hosts;            // replaces the user's and the system's files
  std::string config;                 // replaces the user's and the system's ssh_config
  bool accept_new_host_keys = false;  // unknown ones only; changed ones are always refused
  std::string command;
  std::shared_ptr<SshLookup> lookup;  // reads the configuration; shared by the hosts of a job
  Time deadline{};  // for the start: the command runs by then, or the host is given up
};

}  // namespace hvd

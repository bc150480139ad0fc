// The environment of a worker. Pure.
//
// In order, each over the one before:
//   1. the launcher's environment, without what is bound to its host and without what launchers
//      (this one or another) set for their own workers;
//   2. identity and place from this host's login; PATH and LANG only if nothing was forwarded;
//   3. StartAttempt.set, as the user wrote it;
//   4. what this rank is: the families own, torch, Horovod and system of the manual.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/message.h"

namespace hvd {

// What the agent knows and StartAttempt does not say.
struct WorkerSurroundings {
  std::string job, host_name;
  uint32_t cores = 1;
  std::vector<std::string> cards;    // names of all network cards, if a data card is given
  uint32_t devices = 0;              // GPUs
  std::vector<unsigned> processors;  // it may run on; empty: all that the agent may
  std::string workdir;               // absolute
  std::string agent_socket;          // path
  std::string notify_socket;         // path; empty: none
  uint64_t file_limit = 0;           // soft limit on open files; 0: the agent's
  std::vector<std::string> login;    // the agent's own environment, NAME=VALUE
  bool keep_output = false;          // see OutputStream
};

// NAME=VALUE, each name once.
std::vector<std::string> compose_environment(const StartAttempt& start, const Place& place,
                                             const WorkerSurroundings& around);

// What --substitute puts in place of {rank}, {host} and so on. The values of {resume_from} and
// {resume_step} are empty when the attempt starts fresh.
std::map<std::string, std::string> substitutes(const StartAttempt& start, const Place& place,
                                               const std::string& host_name);
// The program and its arguments; with StartAttempt.substitute the names in the arguments are
// replaced.
std::vector<std::string> compose_arguments(const StartAttempt& start, const Place& place,
                                           const std::string& host_name);

// The value of NAME in a list of NAME=VALUE; empty if it is not there.
std::string value_of(const std::vector<std::string>& environment, std::string_view name);

}  // namespace hvd

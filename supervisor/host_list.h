// Which of the hosts that a discovery script prints are taken to be there. Pure: what it printed
// and the time go in.
//
// A host is believed to have come or gone when it has been printed, or not, for five seconds
// without a break. One that goes back and forth must hold still for longer each time, up to five
// minutes; a minute and all is forgotten. So a list that flaps moves nothing.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "supervisor/host.h"

namespace hvd {

class HostList {
 public:
  struct Change {
    std::vector<Host> come;  // in the order in which they were printed
    std::vector<Host> gone;
  };

  // `hosts` are believed from the start.
  explicit HostList(const std::vector<Host>& hosts);

  // All that the script printed in one run.
  void see(const std::vector<Host>& printed, Time now);
  // What is believed from now on, and was not; due by deadline() at the latest.
  Change settle(Time now);
  std::optional<Time> deadline() const;

 private:
  struct Entry {
    Host host;  // as printed last
    size_t place = 0;
    bool believed = false, printed = false;
    std::optional<Time> changed;  // `printed`, last
    Duration stillness{};         // that this change needs
  };

  std::map<std::string, Entry> entries_;  // by name and port
};

}  // namespace hvd

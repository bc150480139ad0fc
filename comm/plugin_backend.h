// A backend that lives in a shared object beside libhvdcomm.so (backend_plugin.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/backend.h"
#include "comm/backend_plugin.h"

namespace hvd {

class PluginBackend : public Backend {
 public:
  // Loads libhvdcomm_NAME.so and opens it on all ranks, which agree over `communicator` before: if
  // one of them cannot, all fail and name it. `member` lacks only its id. `check` tells of lost
  // ranks. Both must outlive the backend.
  static Outcome open(const std::string& name, hvd_plugin_member member, Communicator& communicator,
                      std::function<Outcome()> check, std::unique_ptr<Backend>& backend);
  ~PluginBackend() override;

  bool takes(const void* buffer) const override { return plugin_->takes(buffer) != 0; }
  Outcome allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype) override;

 private:
  PluginBackend(std::string name, Communicator& communicator, std::function<Outcome()> check)
      : name_(std::move(name)), communicator_(communicator), check_(std::move(check)) {}
  static int stopped(void* context);
  std::string load();
  Outcome failure(const std::string& text);

  std::string name_;
  Communicator& communicator_;
  std::function<Outcome()> check_;
  Outcome told_;  // what check_ said when it ended a wait
  const hvd_plugin* plugin_ = nullptr;
  void* instance_ = nullptr;
};

}  // namespace hvd

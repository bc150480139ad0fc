// Who performs an allreduce. The ring backend (collectives.h) takes buffers in the host's memory
// and is always there; the NCCL backend is a plug-in that takes buffers on a GPU.
#pragma once

#include <cstdint>

#include "comm/collectives.h"
#include "comm/outcome.h"

namespace hvd {

class Backend {
 public:
  virtual ~Backend() = default;

  // Whether a buffer is in memory that this backend works on.
  virtual bool takes(const void* buffer) const = 0;
  virtual Outcome allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype) = 0;
};

class RingBackend : public Backend {
 public:
  explicit RingBackend(Communicator& communicator) : communicator_(communicator) {}

  bool takes(const void*) const override { return true; }
  Outcome allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype) override {
    return communicator_.allreduce(in, out, count, dtype);
  }

 private:
  Communicator& communicator_;
};

}  // namespace hvd

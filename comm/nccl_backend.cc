// The NCCL backend, libhvdcomm_nccl.so: sums buffers in the memory of GPUs. Every call into NCCL is
// non-blocking and polled, so that a lost rank or a limit ends it; a communicator in trouble is
// aborted, never waited for.
#include <cuda_runtime.h>
#include <nccl.h>
#include <time.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "comm/backend_plugin.h"
#include "comm/include/hvd/comm.h"

namespace {

constexpr long kPollNanoseconds = 50'000;

uint64_t now_ms() {
  timespec ts{};
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1000 + static_cast<uint64_t>(ts.tv_nsec) / 1'000'000;
}

// Empty, or why a call failed.
std::string cuda_error(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return "";
  return std::string(what) + ": " + cudaGetErrorString(error);
}

bool nccl_type(int dtype, ncclDataType_t& type) {
  switch (dtype) {
    case HVD_FLOAT32:
      type = ncclFloat32;
      return true;
    case HVD_FLOAT64:
      type = ncclFloat64;
      return true;
    case HVD_INT32:
      type = ncclInt32;
      return true;
    case HVD_INT64:
      type = ncclInt64;
      return true;
    case HVD_UINT8:
      type = ncclUint8;
      return true;
    default:
      return false;
  }
}

class Nccl {
 public:
  Nccl(const hvd_plugin_member& member, hvd_plugin_host host)
      : host_(host), limit_ms_(member.limit_ms) {}
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // Empty, or why not.
  std::string open(const hvd_plugin_member& member);
  std::string allreduce(const void* in, void* out, uint64_t count, ncclDataType_t type);

 private:
  template <class Ready>
  std::string poll(Ready ready, uint64_t limit_ms, const char* what);
  std::string settle(ncclResult_t result, uint64_t limit_ms, const char* what);
  std::string abort(const std::string& why);

  hvd_plugin_host host_;
  uint64_t limit_ms_;
  int device_ = 0;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
};

Nccl::~Nccl() {
  if (comm_ != nullptr) ncclCommAbort(comm_);
  if (ready_ != nullptr) cudaEventDestroy(ready_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

std::string Nccl::open(const hvd_plugin_member& member) {
  int devices = 0;
  std::string trouble = cuda_error("no GPU can be used", cudaGetDeviceCount(&devices));
  if (!trouble.empty()) return trouble;
  if (devices == 0) return "this host has no GPU";
  device_ = static_cast<int>(member.local_rank) % devices;
  trouble = cuda_error("the GPU cannot be used", cudaSetDevice(device_));
  if (trouble.empty()) {
    trouble = cuda_error("no stream", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  if (trouble.empty()) {
    trouble = cuda_error("no event", cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming));
  }
  if (!trouble.empty()) return trouble;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id;
  static_assert(sizeof id.internal == HVD_PLUGIN_ID_BYTES);
  std::memcpy(id.internal, member.id, sizeof id.internal);
  return settle(ncclCommInitRankConfig(&comm_, static_cast<int>(member.size), id,
                                       static_cast<int>(member.rank), &config),
                member.init_limit_ms, "ncclCommInitRankConfig");
}

std::string Nccl::allreduce(const void* in, void* out, uint64_t count, ncclDataType_t type) {
  if (comm_ == nullptr) return "the NCCL communicator was aborted";
  // What the program has queued so far on its default stream fills the input.
  std::string trouble = cuda_error("the GPU cannot be used", cudaSetDevice(device_));
  if (trouble.empty()) {
    trouble = cuda_error("cudaEventRecord", cudaEventRecord(ready_, cudaStreamLegacy));
  }
  if (trouble.empty()) {
    trouble = cuda_error("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_, ready_, 0));
  }
  if (!trouble.empty()) return abort(trouble);
  trouble = settle(ncclAllReduce(in, out, count, type, ncclSum, comm_, stream_), limit_ms_,
                   "ncclAllReduce");
  if (!trouble.empty()) return trouble;
  return poll(
      [this](std::string& failed) {
        const cudaError_t state = cudaStreamQuery(stream_);
        if (state == cudaErrorNotReady) return false;
        failed = cuda_error("the sum on the GPU failed", state);
        return true;
      },
      limit_ms_, "the sum on the GPU");
}

// Waits until a non-blocking call has taken effect.
std::string Nccl::settle(ncclResult_t result, uint64_t limit_ms, const char* what) {
  if (result != ncclSuccess && result != ncclInProgress) {
    return abort(std::string(what) + ": " + ncclGetErrorString(result));
  }
  return poll(
      [&](std::string& failed) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        if (asked == ncclSuccess && state == ncclInProgress) return false;
        const ncclResult_t worst = asked != ncclSuccess ? asked : state;
        if (worst != ncclSuccess) failed = std::string(what) + ": " + ncclGetErrorString(worst);
        return true;
      },
      limit_ms, what);
}

// Asks `ready` again and again; it returns true at the end, with a text if it failed.
template <class Ready>
std::string Nccl::poll(Ready ready, uint64_t limit_ms, const char* what) {
  const uint64_t start = now_ms();
  while (true) {
    std::string failed;
    if (ready(failed)) return failed.empty() ? "" : abort(failed);
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess ||
        (state != ncclSuccess && state != ncclInProgress)) {
      return abort(std::string(what) + ": " + ncclGetErrorString(state));
    }
    if (host_.stopped(host_.context) != 0) return abort("a rank is gone");
    if (limit_ms > 0 && now_ms() - start > limit_ms) {
      return abort(std::string(what) + " did not end within " + std::to_string(limit_ms) + " ms");
    }
    const timespec pause{0, kPollNanoseconds};
    nanosleep(&pause, nullptr);
  }
}

std::string Nccl::abort(const std::string& why) {
  if (comm_ != nullptr) ncclCommAbort(comm_);
  comm_ = nullptr;
  return why;
}

int tell(const std::string& trouble, char* text) {
  std::snprintf(text, HVD_PLUGIN_TEXT, "%s", trouble.c_str());
  return trouble.empty() ? 0 : 1;
}

int takes(const void* buffer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, buffer) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

int make_id(unsigned char* id, char* text) {
  ncclUniqueId unique;
  const ncclResult_t result = ncclGetUniqueId(&unique);
  if (result != ncclSuccess) {
    return tell(std::string("ncclGetUniqueId: ") + ncclGetErrorString(result), text);
  }
  std::memcpy(id, unique.internal, HVD_PLUGIN_ID_BYTES);
  return 0;
}

int open(const hvd_plugin_member* member, hvd_plugin_host host, void** instance, char* text) {
  auto nccl = std::make_unique<Nccl>(*member, host);
  const std::string trouble = nccl->open(*member);
  if (trouble.empty()) *instance = nccl.release();
  return tell(trouble, text);
}

int allreduce(void* instance, const void* in, void* out, uint64_t count, int dtype, char* text) {
  ncclDataType_t type = ncclFloat32;
  if (!nccl_type(dtype, type)) return tell("NCCL has no such dtype", text);
  return tell(static_cast<Nccl*>(instance)->allreduce(in, out, count, type), text);
}

void close(void* instance) {
  delete static_cast<Nccl*>(instance);
}

constexpr hvd_plugin kPlugin = {HVD_PLUGIN_VERSION, &takes, &make_id, &open, &allreduce, &close};

}  // namespace

extern "C" __attribute__((visibility("default"))) const hvd_plugin* hvd_backend_plugin(void) {
  return &kPlugin;
}

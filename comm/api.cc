// The C functions of hvd/comm.h: checks of arguments, and the one session of the process.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "comm/header.h"
#include "comm/include/hvd/comm.h"
#include "comm/session.h"
#include "comm/shard_tree.h"

namespace hvd {

namespace {

// A C interface without a handle needs one place per process. It is never destroyed, so that calls
// from exit handlers find it.
struct Process {
  std::mutex mutex;  // guards session, ended and started
  std::unique_ptr<Session> session;
  std::unique_ptr<Session> ended;  // after hvd_finalize: still connected to the agent
  bool started = false;
  std::atomic<pid_t> pid{0};  // who called hvd_init, 0 before
  std::atomic<ProgressPage*> page{nullptr};
  std::atomic<bool> forked{false};  // asked by heartbeats, which make no system call
};

Process& process() {
  static Process* const made = new Process;
  return *made;
}

std::string& last_error() {
  thread_local std::string text;
  return text;
}

hvd_result report(const Outcome& outcome) {
  if (!outcome) last_error() = outcome.text();
  return outcome.code();
}

Outcome forked_refusal() {
  return {HVD_FORKED,
          "this process is a fork of the one that called hvd_init, and cannot take part"};
}

bool is_fork(const Process& p) {
  const pid_t pid = p.pid.load(std::memory_order_relaxed);
  return pid != 0 && pid != getpid();
}

// Runs `body` with whatever it needs, and lets no exception out of the library.
template <class Body>
hvd_result guarded(Body body) {
  try {
    try {
      return report(body());
    } catch (const std::bad_alloc&) {
      return report({HVD_OUT_OF_MEMORY, "there is no memory for this call"});
    } catch (const std::exception& e) {
      return report({HVD_SYSTEM_ERROR, e.what()});
    }
  } catch (...) {
    return HVD_OUT_OF_MEMORY;
  }
}

// Calls `body` with the session, one caller at a time.
template <class Body>
hvd_result with_session(Body body) {
  return guarded([&]() -> Outcome {
    Process& p = process();
    if (is_fork(p)) return forked_refusal();
    const std::lock_guard lock(p.mutex);
    if (!p.session) {
      return {HVD_NOT_INITIALIZED, p.started ? "hvd_init failed or hvd_finalize was called before"
                                             : "hvd_init was not called"};
    }
    try {
      return body(*p.session);
    } catch (const std::bad_alloc&) {
      // The other ranks are in this call and must not wait for one that left it.
      return p.session->fail({HVD_OUT_OF_MEMORY, "there is no memory for this call"});
    }
  });
}

Outcome invalid(const std::string& text) {
  return {HVD_INVALID_ARGUMENT, text};
}

Outcome open_session(Process& p) {
  if (is_fork(p)) return forked_refusal();
  const std::lock_guard lock(p.mutex);
  if (p.started) return invalid("hvd_init was called before in this process");
  const Result<Settings> settings = settings_from_environment();
  if (!settings) return invalid(settings.error().text);
  p.started = true;
  p.pid = getpid();
  pthread_atfork(nullptr, nullptr, [] { process().forked.store(true); });
  const Outcome opened = Session::open(*settings, p.session);
  if (p.session) p.page.store(p.session->page(), std::memory_order_release);
  return opened;
}

// One number that the session knows.
hvd_result tell(uint32_t* out, uint32_t (Session::*number)() const) {
  return with_session([&](Session& session) -> Outcome {
    if (out == nullptr) return invalid("the pointer for the answer is NULL");
    *out = (session.*number)();
    return {};
  });
}

// Empty, or what is wrong with a buffer of `count` elements; its length in bytes in `bytes`.
std::string buffer_trouble(const void* buffer, uint64_t count, hvd_dtype dtype, uint64_t& bytes) {
  const uint64_t size = dtype_size(dtype);
  if (size == 0) return "there is no dtype " + std::to_string(static_cast<int>(dtype));
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX) {
    return std::to_string(count) + " elements are more than memory can hold";
  }
  if (buffer == nullptr && bytes > 0) return "a buffer is NULL";
  return "";
}

bool overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a);
  const auto y = reinterpret_cast<uintptr_t>(b);
  return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

Outcome allreduce(Session& session, const void* in, void* out, uint64_t count, hvd_dtype dtype) {
  uint64_t bytes = 0;
  std::string trouble = buffer_trouble(in, count, dtype, bytes);
  if (trouble.empty()) trouble = buffer_trouble(out, count, dtype, bytes);
  if (trouble.empty() && in != out && overlap(in, bytes, out, bytes)) {
    trouble = "the buffers overlap and are not the same";
  }
  if (!trouble.empty()) return invalid("hvd_allreduce: " + trouble);
  return session.allreduce(in, out, count, dtype);
}

Outcome allreduce_shards(Session& session, const void* shards, uint32_t here, uint32_t total,
                         void* out, uint64_t count, hvd_dtype dtype) {
  const uint64_t held = cut(total, session.rank(), session.size()).size();
  uint64_t bytes = 0, shard_bytes = 0, elements = 0;
  std::string trouble = buffer_trouble(out, count, dtype, bytes);
  if (trouble.empty() && total == 0) trouble = "there are no shards";
  if (trouble.empty() && here != held) {
    trouble = "rank " + std::to_string(session.rank()) + " of " + std::to_string(session.size()) +
              " holds " + std::to_string(held) + " of " + std::to_string(total) + " shards, not " +
              std::to_string(here);
  }
  if (trouble.empty() && __builtin_mul_overflow(count, held, &elements)) {
    trouble = "the shards are more than memory can hold";
  }
  if (trouble.empty()) trouble = buffer_trouble(shards, elements, dtype, shard_bytes);
  if (trouble.empty() && overlap(shards, shard_bytes, out, bytes)) {
    trouble = "the result overlaps the shards";
  }
  if (!trouble.empty()) return invalid("hvd_allreduce_shards: " + trouble);
  return session.allreduce_shards(shards, total, out, count, dtype);
}

const char* format_dtype(hvd_dtype dtype) {
  switch (dtype) {
    case HVD_FLOAT32:
      return "F32";
    case HVD_FLOAT64:
      return "F64";
    case HVD_INT32:
      return "I32";
    case HVD_INT64:
      return "I64";
    case HVD_UINT8:
      return "U8";
  }
  return "";
}

// The caller's arrays as the checkpoint format has them.
Outcome read_arrays(const hvd_array* arrays, size_t count, std::vector<NamedArray>& list) {
  if (arrays == nullptr && count > 0) return invalid("the arrays are NULL");
  for (size_t i = 0; i < count; ++i) {
    const hvd_array& array = arrays[i];
    const std::string which = "array " + std::to_string(i) + ": ";
    if (array.name == nullptr) return invalid(which + "its name is NULL");
    if (array.shape == nullptr && array.dims > 0) return invalid(which + "its shape is NULL");
    NamedArray named;
    named.name = array.name;
    named.dtype = format_dtype(array.dtype);
    named.data = array.data;
    named.replicated = array.own == 0;
    uint64_t elements = 1;
    for (uint32_t d = 0; d < array.dims; ++d) {
      named.shape.push_back(array.shape[d]);
      if (__builtin_mul_overflow(elements, array.shape[d], &elements)) {
        return invalid(which + "its shape is more than memory can hold");
      }
    }
    const std::string trouble = buffer_trouble(array.data, elements, array.dtype, named.bytes);
    if (!trouble.empty()) return invalid(which + trouble);
    list.push_back(std::move(named));
  }
  return {};
}

Outcome load(Session& session, const hvd_array* arrays, size_t count, char* note, size_t note_size,
             uint64_t* step) {
  std::vector<NamedArray> list;
  const Outcome read = read_arrays(arrays, count, list);
  if (!read) return read;
  if (note != nullptr && note_size == 0) return invalid("the note's buffer has no room");
  std::vector<ArrayTarget> targets;
  for (size_t i = 0; i < count; ++i) {
    targets.push_back({list[i].name, list[i].dtype, arrays[i].data, list[i].bytes});
  }
  LoadedCheckpoint loaded;
  const size_t note_limit = note == nullptr ? SIZE_MAX : note_size - 1;
  const Outcome outcome = session.load(targets, note_limit, loaded);
  if (!outcome) return outcome;
  if (note != nullptr) {
    std::memcpy(note, loaded.note.data(), loaded.note.size());
    note[loaded.note.size()] = '\0';
  }
  if (step != nullptr) *step = loaded.step;
  return {};
}

// The last part of a path, without slashes at its end.
std::string_view last_part(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

}  // namespace hvd

using namespace hvd;

extern "C" {

const char* hvd_error_string(hvd_result result) {
  switch (result) {
    case HVD_OK:
      return "no error";
    case HVD_INVALID_ARGUMENT:
      return "invalid argument";
    case HVD_NOT_INITIALIZED:
      return "not initialized";
    case HVD_FORKED:
      return "called after fork";
    case HVD_PEER_FAILED:
      return "a rank is gone";
    case HVD_MISMATCH:
      return "ranks called different collectives";
    case HVD_TIMED_OUT:
      return "timed out";
    case HVD_AGENT_LOST:
      return "the host's agent is gone";
    case HVD_CHECKPOINT_FAILED:
      return "the checkpoint could not be saved or loaded";
    case HVD_NO_CHECKPOINT:
      return "there is no checkpoint";
    case HVD_UNSUPPORTED:
      return "not supported";
    case HVD_OUT_OF_MEMORY:
      return "out of memory";
    case HVD_SYSTEM_ERROR:
      return "a system call failed";
  }
  return "unknown result";
}

const char* hvd_last_error(void) {
  return last_error().c_str();
}

hvd_result hvd_init(void) {
  return guarded([] { return open_session(process()); });
}

hvd_result hvd_finalize(void) {
  return with_session([](Session& session) {
    const Outcome outcome = session.finalize();
    process().ended = std::move(process().session);
    return outcome;
  });
}

hvd_result hvd_rank(uint32_t* rank) {
  return tell(rank, &Session::rank);
}
hvd_result hvd_size(uint32_t* size) {
  return tell(size, &Session::size);
}
hvd_result hvd_local_rank(uint32_t* local_rank) {
  return tell(local_rank, &Session::local_rank);
}
hvd_result hvd_local_size(uint32_t* local_size) {
  return tell(local_size, &Session::local_size);
}

hvd_result hvd_allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype) {
  return with_session([&](Session& s) { return hvd::allreduce(s, in, out, count, dtype); });
}

hvd_result hvd_shard_range(uint32_t total, uint32_t* first, uint32_t* here) {
  return with_session([&](Session& session) -> Outcome {
    if (first == nullptr || here == nullptr) return invalid("the pointer for the answer is NULL");
    const hvd::ShardRange range = cut(total, session.rank(), session.size());
    *first = static_cast<uint32_t>(range.first);
    *here = static_cast<uint32_t>(range.size());
    return {};
  });
}

hvd_result hvd_allreduce_shards(const void* shards, uint32_t shards_here, uint32_t total_shards,
                                void* out, uint64_t count, hvd_dtype dtype) {
  return with_session([&](Session& s) {
    return hvd::allreduce_shards(s, shards, shards_here, total_shards, out, count, dtype);
  });
}

hvd_result hvd_broadcast(void* buffer, uint64_t count, hvd_dtype dtype, uint32_t root) {
  return with_session([&](Session& session) -> Outcome {
    uint64_t bytes = 0;
    const std::string trouble = buffer_trouble(buffer, count, dtype, bytes);
    if (!trouble.empty()) return invalid("hvd_broadcast: " + trouble);
    if (root >= session.size()) {
      return invalid("hvd_broadcast: there is no rank " + std::to_string(root) + " among " +
                     std::to_string(session.size()));
    }
    return session.broadcast(buffer, count, dtype, root);
  });
}

hvd_result hvd_barrier(void) {
  return with_session([](Session& session) { return session.barrier(); });
}

hvd_result hvd_heartbeat(uint64_t step) {
  Process& p = process();
  ProgressPage* page = p.page.load(std::memory_order_acquire);
  if (page == nullptr || p.forked.load(std::memory_order_relaxed)) {
    return with_session([](Session&) { return Outcome(); });
  }
  std::atomic_ref<uint64_t>(page->step).store(step, std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(page->heartbeats).fetch_add(1, std::memory_order_relaxed);
  return HVD_OK;
}

hvd_result hvd_checkpoint_save(uint64_t step, const hvd_array* arrays, size_t count,
                               const char* note) {
  return with_session([&](Session& session) -> Outcome {
    std::vector<NamedArray> list;
    const Outcome read = read_arrays(arrays, count, list);
    if (!read) return read;
    return session.save(step, note == nullptr ? "" : note, list);
  });
}

hvd_result hvd_checkpoint_save_async(uint64_t step, const hvd_array* arrays, size_t count,
                                     const char* note) {
  return with_session([&](Session& session) -> Outcome {
    std::vector<NamedArray> list;
    const Outcome read = read_arrays(arrays, count, list);
    if (!read) return read;
    return session.save_async(step, note == nullptr ? "" : note, list);
  });
}

hvd_result hvd_checkpoint_keep(uint64_t step, const hvd_array* arrays, size_t count,
                               const char* note) {
  return with_session([&](Session& session) -> Outcome {
    std::vector<NamedArray> list;
    const Outcome read = read_arrays(arrays, count, list);
    if (!read) return read;
    return session.keep(step, note == nullptr ? "" : note, list);
  });
}

hvd_result hvd_checkpoint_wait(void) {
  return with_session([](Session& session) { return session.wait_for_save(); });
}

hvd_result hvd_checkpoint_available(int* available, uint64_t* step) {
  return with_session([&](Session& session) -> Outcome {
    if (available == nullptr) return invalid("the pointer for the answer is NULL");
    const Settings& settings = session.settings();
    *available = settings.resume_from.empty() ? 0 : 1;
    if (step == nullptr || *available == 0) return {};
    const auto named = parse_step_folder(last_part(settings.resume_from));
    *step = settings.resume_step ? *settings.resume_step : named.value_or(0);
    return {};
  });
}

hvd_result hvd_checkpoint_load(const hvd_array* arrays, size_t count, char* note, size_t note_size,
                               uint64_t* step) {
  return with_session(
      [&](Session& session) { return hvd::load(session, arrays, count, note, note_size, step); });
}

hvd_result hvd_abort(int code, const char* reason) {
  return with_session([&](Session& session) -> Outcome {
    if (code < 1 || code > 255) return invalid("hvd_abort: an exit code is 1 to 255");
    return session.abort(code, reason == nullptr ? "" : reason);
  });
}

}  // extern "C"

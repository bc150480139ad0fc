// The C++ face of hvd/comm.h: the same calls, with failures thrown as hvd::comm::Failure. Header
// only; needs nothing but the C library's symbols.
#pragma once

#include <hvd/comm.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace hvd::comm {

// A call that failed: its result and its sentence.
class Failure : public std::runtime_error {
 public:
  explicit Failure(hvd_result result) : std::runtime_error(hvd_last_error()), result_(result) {}
  hvd_result result() const { return result_; }

 private:
  hvd_result result_;
};

inline void require(hvd_result result) {
  if (result != HVD_OK) throw Failure(result);
}

template <class T>
inline constexpr bool kIsElement = false;
template <>
inline constexpr bool kIsElement<float> = true;
template <>
inline constexpr bool kIsElement<double> = true;
template <>
inline constexpr bool kIsElement<int32_t> = true;
template <>
inline constexpr bool kIsElement<int64_t> = true;
template <>
inline constexpr bool kIsElement<uint8_t> = true;

template <class T>
constexpr hvd_dtype dtype_of() {
  static_assert(kIsElement<T>, "not an element type of libhvdcomm");
  if constexpr (std::is_same_v<T, float>) return HVD_FLOAT32;
  if constexpr (std::is_same_v<T, double>) return HVD_FLOAT64;
  if constexpr (std::is_same_v<T, int32_t>) return HVD_INT32;
  if constexpr (std::is_same_v<T, int64_t>) return HVD_INT64;
  return HVD_UINT8;
}

// From hvd_init to hvd_finalize. One per process.
class Session {
 public:
  Session() { require(hvd_init()); }
  ~Session() { hvd_finalize(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  uint32_t rank() const { return number(&hvd_rank); }
  uint32_t size() const { return number(&hvd_size); }
  uint32_t local_rank() const { return number(&hvd_local_rank); }
  uint32_t local_size() const { return number(&hvd_local_size); }

 private:
  static uint32_t number(hvd_result (*ask)(uint32_t*)) {
    uint32_t value = 0;
    require(ask(&value));
    return value;
  }
};

template <class T>
void allreduce(const T* in, T* out, uint64_t count) {
  require(hvd_allreduce(in, out, count, dtype_of<T>()));
}

struct ShardRange {
  uint32_t first = 0, here = 0;
};

inline ShardRange shard_range(uint32_t total) {
  ShardRange range;
  require(hvd_shard_range(total, &range.first, &range.here));
  return range;
}

// `shards` holds this rank's shards (shard_range) of out.size() elements each.
template <class T>
void allreduce_shards(const std::vector<T>& shards, uint32_t total, std::vector<T>& out) {
  const uint32_t here = shard_range(total).here;
  if (shards.size() != here * out.size()) throw std::invalid_argument("wrong number of shards");
  require(hvd_allreduce_shards(shards.data(), here, total, out.data(), out.size(), dtype_of<T>()));
}

template <class T>
void broadcast(T* buffer, uint64_t count, uint32_t root) {
  require(hvd_broadcast(buffer, count, dtype_of<T>(), root));
}

inline void barrier() {
  require(hvd_barrier());
}

inline void heartbeat(uint64_t step) {
  require(hvd_heartbeat(step));
}

// A vector as a one-dimensional array of a checkpoint. `name` and the vector must outlive it.
class Array {
 public:
  template <class T>
  Array(const char* name, std::vector<T>& values, bool own = false)
      : name_(name),
        data_(values.data()),
        extent_(values.size()),
        dtype_(dtype_of<T>()),
        own_(own) {}

  hvd_array c_array() const { return {name_, data_, &extent_, 1, dtype_, own_ ? 1 : 0}; }

 private:
  const char* name_;
  void* data_;
  uint64_t extent_;
  hvd_dtype dtype_;
  bool own_;
};

inline void checkpoint_save(uint64_t step, const std::vector<Array>& arrays,
                            const std::string& note) {
  std::vector<hvd_array> list;
  for (const Array& array : arrays) list.push_back(array.c_array());
  require(hvd_checkpoint_save(step, list.data(), list.size(), note.c_str()));
}

// Returns as soon as the arrays are copied.
inline void checkpoint_save_async(uint64_t step, const std::vector<Array>& arrays,
                                  const std::string& note) {
  std::vector<hvd_array> list;
  for (const Array& array : arrays) list.push_back(array.c_array());
  require(hvd_checkpoint_save_async(step, list.data(), list.size(), note.c_str()));
}

// Returns as soon as the arrays are copied to memory that outlives the process.
inline void checkpoint_keep(uint64_t step, const std::vector<Array>& arrays,
                            const std::string& note) {
  std::vector<hvd_array> list;
  for (const Array& array : arrays) list.push_back(array.c_array());
  require(hvd_checkpoint_keep(step, list.data(), list.size(), note.c_str()));
}

inline void checkpoint_wait() {
  require(hvd_checkpoint_wait());
}

// The step to go on from, if there is a checkpoint.
inline std::optional<uint64_t> checkpoint_available() {
  int available = 0;
  uint64_t step = 0;
  require(hvd_checkpoint_available(&available, &step));
  if (available == 0) return std::nullopt;
  return step;
}

struct Loaded {
  uint64_t step = 0;
  std::string note;
};

// Notes of up to `note_limit` bytes.
inline Loaded checkpoint_load(const std::vector<Array>& arrays, size_t note_limit = 65536) {
  std::vector<hvd_array> list;
  for (const Array& array : arrays) list.push_back(array.c_array());
  std::vector<char> note(note_limit + 1);
  Loaded loaded;
  require(hvd_checkpoint_load(list.data(), list.size(), note.data(), note.size(), &loaded.step));
  loaded.note = note.data();
  return loaded;
}

}  // namespace hvd::comm

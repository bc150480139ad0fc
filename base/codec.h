// Values as bytes. A struct takes part by a static template
//     template <class M, class V> static void visit(M& m, V& v) { v(m.a, m.b); }
// that names its members in order. Integers are little-endian at full width, strings and vectors
// carry a 32-bit count. The decoder is total: whatever the bytes, it ends in a value or in
// ok() == false, and never allocates more than the bytes it was given can fill.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace hvd {

class Encoder {
 public:
  std::string take() { return std::move(out_); }

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

 private:
  template <class T>
  void put(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      put(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::is_integral_v<T>) {
      auto bits = static_cast<uint64_t>(value);
      for (size_t i = 0; i < sizeof(T); ++i, bits >>= 8) out_.push_back(static_cast<char>(bits));
    } else {
      T::visit(value, *this);
    }
  }
  void put(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    out_ += text;
  }
  template <class A, class B>
  void put(const std::pair<A, B>& pair) {
    put(pair.first);
    put(pair.second);
  }
  template <class T>
  void put(const std::vector<T>& items) {
    put(static_cast<uint32_t>(items.size()));
    for (const T& item : items) put(item);
  }

  std::string out_;
};

class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}

  // True when everything asked for was there, in range, and nothing is left over.
  bool finished() const { return ok_ && rest_.empty(); }
  bool ok() const { return ok_; }

  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }

 private:
  template <class T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      get(byte);
      if (byte > 1) ok_ = false;
      value = byte == 1;
    } else if constexpr (std::is_enum_v<T>) {
      // Every enum that travels names its last enumerator kLast.
      std::underlying_type_t<T> number = 0;
      get(number);
      if (number > static_cast<std::underlying_type_t<T>>(T::kLast)) ok_ = false;
      value = ok_ ? static_cast<T>(number) : T{};
    } else if constexpr (std::is_integral_v<T>) {
      if (rest_.size() < sizeof(T)) {
        ok_ = false;
        return;
      }
      uint64_t bits = 0;
      for (size_t i = 0; i < sizeof(T); ++i) {
        bits |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
      }
      value = static_cast<T>(bits);
      rest_.remove_prefix(sizeof(T));
    } else {
      T::visit(value, *this);
    }
  }
  void get(std::string& text) {
    const uint32_t size = count();
    text.assign(rest_.substr(0, size));
    rest_.remove_prefix(size);
  }
  template <class A, class B>
  void get(std::pair<A, B>& pair) {
    get(pair.first);
    get(pair.second);
  }
  template <class T>
  void get(std::vector<T>& items) {
    const uint32_t size = count();
    items.clear();
    for (uint32_t i = 0; i < size && ok_; ++i) get(items.emplace_back());
  }
  // A count of things that take at least one byte each.
  uint32_t count() {
    uint32_t size = 0;
    get(size);
    if (size > rest_.size()) ok_ = false;
    return ok_ ? size : 0;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace hvd

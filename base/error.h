// Errors as values. A request that cannot be met is a Result holding an Error with one whole
// sentence for the user; a broken promise of our own code is HVD_CHECK, which ends the process.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <variant>

namespace hvd {

// Why a request could not be met. `text` is a sentence without a final full stop that names the
// host, file, line or option concerned.
struct Error {
  std::string text;
};

// The value of a Result that carries nothing but success.
struct Ok {};

// A value or the Error that took its place.
template <class T>
class Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

using Status = Result<Ok>;

// "what: strerror(errno number)".
Error errno_error(const std::string& what, int number);

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace hvd

// Our own bug, never a fault of the user or the world: prints where and aborts.
#define HVD_CHECK(expression) \
  ((expression) ? static_cast<void>(0) : ::hvd::check_failed(#expression, __FILE__, __LINE__))

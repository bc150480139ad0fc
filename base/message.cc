#include "base/message.h"

#include <array>

#include "base/frame.h"

namespace hvd {

namespace {

template <class Wire>
std::string encode(const Wire& message) {
  Encoder encoder;
  encoder(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& m) { m.visit(m, encoder); }, message);
  return frame(encoder.take());
}

template <class Wire, size_t I>
std::optional<Wire> decode_as(std::string_view body) {
  Wire message{std::in_place_index<I>};
  Decoder decoder(body);
  auto& m = std::get<I>(message);
  m.visit(m, decoder);
  if (!decoder.finished()) return std::nullopt;
  return message;
}

template <class Wire, size_t... I>
std::optional<Wire> decode(std::string_view body, std::index_sequence<I...>) {
  using Parse = std::optional<Wire> (*)(std::string_view);
  static constexpr std::array<Parse, sizeof...(I)> kParsers = {&decode_as<Wire, I>...};
  if (body.empty()) return std::nullopt;
  const auto kind = static_cast<unsigned char>(body[0]);
  if (kind >= kParsers.size()) return std::nullopt;
  return kParsers[kind](body.substr(1));
}

template <class Wire>
std::optional<Wire> decode(std::string_view body) {
  return decode<Wire>(body, std::make_index_sequence<std::variant_size_v<Wire>>());
}

}  // namespace

std::string to_frame(const ToAgent& message) {
  return encode(message);
}
std::string to_frame(const FromAgent& message) {
  return encode(message);
}
std::string to_frame(const FromWorker& message) {
  return encode(message);
}
std::string to_frame(const ToWorker& message) {
  return encode(message);
}

bool is_counted(const ToAgent& message) {
  return !std::holds_alternative<LauncherHello>(message) &&
         !std::holds_alternative<Echo>(message) && !std::holds_alternative<Credit>(message) &&
         !std::holds_alternative<TakeOutput>(message);
}
bool is_counted(const FromAgent& message) {
  return !std::holds_alternative<AgentHello>(message) && !std::holds_alternative<Held>(message) &&
         !std::holds_alternative<Beat>(message) && !std::holds_alternative<Output>(message) &&
         !std::holds_alternative<OutputEnd>(message);
}

std::string output_head(const OutputEnd& of, size_t bytes) {
  Encoder encoder;
  encoder(static_cast<uint32_t>(kOutputHead - sizeof(uint32_t) + bytes),
          static_cast<uint8_t>(FromAgent(Output{}).index()), of.attempt, of.rank, of.stream,
          static_cast<uint32_t>(bytes));
  return encoder.take();
}

std::optional<ToAgent> parse_to_agent(std::string_view body) {
  return decode<ToAgent>(body);
}
std::optional<FromAgent> parse_from_agent(std::string_view body) {
  return decode<FromAgent>(body);
}
std::optional<FromWorker> parse_from_worker(std::string_view body) {
  return decode<FromWorker>(body);
}
std::optional<ToWorker> parse_to_worker(std::string_view body) {
  return decode<ToWorker>(body);
}

}  // namespace hvd

#include "comm/header.h"

#include <algorithm>

#include "base/error.h"

namespace hvd {

HeaderBytes encode_header(const CollectiveHeader& header) {
  Encoder encoder;
  CollectiveHeader::visit(header, encoder);
  const std::string text = encoder.take();
  HVD_CHECK(text.size() == kHeaderSize);
  HeaderBytes bytes;
  std::copy(text.begin(), text.end(), bytes.begin());
  return bytes;
}

std::optional<CollectiveHeader> decode_header(const HeaderBytes& bytes) {
  Decoder decoder({bytes.data(), bytes.size()});
  CollectiveHeader header;
  CollectiveHeader::visit(header, decoder);
  if (!decoder.finished()) return std::nullopt;
  return header;
}

const char* op_name(Op op) {
  switch (op) {
    case Op::allreduce:
      return "allreduce";
    case Op::allreduce_shards:
      return "allreduce_shards";
    case Op::allreduce_device:
      return "allreduce on the GPU";
    case Op::broadcast:
      return "broadcast";
    case Op::barrier:
      return "barrier";
    case Op::finalize:
      return "finalize";
  }
  return "an unknown operation";
}

uint64_t dtype_size(hvd_dtype dtype) {
  switch (dtype) {
    case HVD_FLOAT32:
    case HVD_INT32:
      return 4;
    case HVD_FLOAT64:
    case HVD_INT64:
      return 8;
    case HVD_UINT8:
      return 1;
  }
  return 0;
}

const char* dtype_name(hvd_dtype dtype) {
  switch (dtype) {
    case HVD_FLOAT32:
      return "float32";
    case HVD_FLOAT64:
      return "float64";
    case HVD_INT32:
      return "int32";
    case HVD_INT64:
      return "int64";
    case HVD_UINT8:
      return "uint8";
  }
  return "unknown dtype";
}

std::string describe(const CollectiveHeader& header) {
  std::string text = op_name(header.op);
  if (header.op == Op::allreduce_shards) {
    text += " of " + std::to_string(header.shards) + " shards";
  }
  if (header.op != Op::barrier && header.op != Op::finalize) {
    text += " of " + std::to_string(header.count) + " " +
            dtype_name(static_cast<hvd_dtype>(header.dtype));
  }
  if (header.op == Op::broadcast) text += " from rank " + std::to_string(header.root);
  return text + " (collective " + std::to_string(header.sequence) + ")";
}

}  // namespace hvd

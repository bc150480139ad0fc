#include "comm/plugin_backend.h"

#include <dlfcn.h>

#include <vector>

namespace hvd {

namespace {

// The folder that libhvdcomm.so was loaded from, with a slash at its end; empty if unknown.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) {
    return "";
  }
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

// Learns on which ranks something did not work: one element per rank, 1 where it did not.
Outcome compare(Communicator& communicator, uint32_t rank, uint32_t size, bool failed,
                std::vector<uint32_t>& ranks) {
  std::vector<int32_t> flags(size, 0);
  flags[rank] = failed ? 1 : 0;
  const Outcome summed = communicator.allreduce(flags.data(), flags.data(), size, HVD_INT32);
  for (uint32_t i = 0; i < size; ++i) {
    if (flags[i] != 0) ranks.push_back(i);
  }
  return summed;
}

}  // namespace

std::string PluginBackend::load() {
  const std::string path = own_folder() + "libhvdcomm_" + name_ + ".so";
  // Never unloaded: the vendor's libraries keep threads of their own.
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) return std::string("the backend cannot be loaded: ") + dlerror();
  const auto entry = reinterpret_cast<hvd_plugin_entry>(dlsym(object, HVD_PLUGIN_ENTRY));
  if (entry == nullptr || entry()->version != HVD_PLUGIN_VERSION) {
    return path + " is not a backend of this version";
  }
  plugin_ = entry();
  return "";
}

Outcome PluginBackend::open(const std::string& name, hvd_plugin_member member,
                            Communicator& communicator, std::function<Outcome()> check,
                            std::unique_ptr<Backend>& backend) {
  std::unique_ptr<PluginBackend> made(new PluginBackend(name, communicator, std::move(check)));
  std::string trouble = made->load();
  char text[HVD_PLUGIN_TEXT] = "";
  if (trouble.empty() && member.rank == 0 && made->plugin_->make_id(member.id, text) != 0) {
    trouble = text;
  }
  std::vector<uint32_t> ranks;
  const Outcome compared = compare(communicator, member.rank, member.size, !trouble.empty(), ranks);
  if (!compared) return compared;
  if (!ranks.empty()) {
    std::string whole = "the backend " + name + " does not work on " + name_ranks(ranks);
    if (!trouble.empty()) whole += ": " + trouble;
    return {HVD_UNSUPPORTED, whole};
  }
  const Outcome told = communicator.broadcast(member.id, sizeof member.id, HVD_UINT8, 0);
  if (!told) return told;
  if (made->plugin_->open(&member, {made.get(), &stopped}, &made->instance_, text) != 0) {
    return made->failure(text);
  }
  backend = std::move(made);
  return {};
}

PluginBackend::~PluginBackend() {
  if (instance_ != nullptr) plugin_->close(instance_);
}

int PluginBackend::stopped(void* context) {
  auto* self = static_cast<PluginBackend*>(context);
  self->told_ = self->check_();
  return self->told_ ? 0 : 1;
}

Outcome PluginBackend::failure(const std::string& text) {
  const Outcome own(HVD_UNSUPPORTED, "the backend " + name_ + " failed: " + text);
  return communicator_.fail(told_ ? own : told_);
}

Outcome PluginBackend::allreduce(const void* in, void* out, uint64_t count, hvd_dtype dtype) {
  const Outcome agreed = communicator_.agree_on_device_allreduce(count, dtype);
  if (!agreed || count == 0) return agreed;
  char text[HVD_PLUGIN_TEXT] = "";
  if (plugin_->allreduce(instance_, in, out, count, dtype, text) != 0) return failure(text);
  return {};
}

}  // namespace hvd

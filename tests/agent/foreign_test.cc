// Checkpoints of other programs' making: recognised and judged as real folders.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>

#include "base/fd.h"
#include "supervisor/agent/folder.h"
#include "supervisor/agent/foreign_layouts.h"
#include "tests/agent/agent_process.h"

using namespace hvd;
using namespace hvd::test;

namespace {

using Files = std::vector<std::pair<std::string, std::string>>;

const std::string kZip =
    std::string("PK\x03\x04", 4) + "content" + std::string("PK\x05\x06", 4) + std::string(18, '\0');

class Tree {
 public:
  explicit Tree(const Files& files) {
    for (const auto& [path, text] : files) put(path, text);
  }
  void put(const std::string& path, const std::string& text) {
    const std::string whole = folder / path;
    REQUIRE(make_folders(whole.substr(0, whole.rfind('/')), 0700).ok());
    REQUIRE(replace_file(whole, text, 0600).ok());
  }
  void remove(const std::string& path) { REQUIRE(unlink((folder / path).c_str()) == 0); }
  void move(const std::string& from, const std::string& to) {
    REQUIRE(rename((folder / from).c_str(), (folder / to).c_str()) == 0);
  }
  std::vector<ListedForeign> find() const {
    const Fd fd = open_folder_at(AT_FDCWD, folder.path());
    return find_foreign(list_for_foreign(fd.get()));
  }
  ListedForeign only() const {
    const auto found = find();
    REQUIRE(found.size() == 1);
    return found[0];
  }
  TestFolder folder;
};

// The layouts, each with a whole checkpoint of step 100.
struct Layout {
  std::string name, path;
  Files files;
  std::vector<std::string> needed;  // each of these files missing or empty makes it incomplete
};

std::vector<Layout> layouts() {
  return {
      {"PyTorch DCP",
       "step_100",
       {{"step_100/.metadata", "..__0_0.distcp..__1_0.distcp.."},
        {"step_100/__0_0.distcp", "x"},
        {"step_100/__1_0.distcp", "x"}},
       {".metadata", "__0_0.distcp", "__1_0.distcp"}},
      {"Orbax",
       "100",
       {{"100/_CHECKPOINT_METADATA", "{}"},
        {"100/default/manifest.ocdbt", "x"},
        {"100/default/d/0", "x"}},
       {"_CHECKPOINT_METADATA"}},
      {"TensorFlow",
       "ckpt-100",
       {{"checkpoint", "model_checkpoint_path: \"ckpt-100\""},
        {"ckpt-100.index", "x"},
        {"ckpt-100.data-00000-of-00002", "x"},
        {"ckpt-100.data-00001-of-00002", "x"}},
       {".index", ".data-00000-of-00002", ".data-00001-of-00002"}},
      {"DeepSpeed",
       "global_step100",
       {{"latest", "global_step100"},
        {"global_step100/mp_rank_00_model_states.pt", kZip},
        {"global_step100/zero_pp_rank_0_mp_rank_00_optim_states.pt", kZip},
        {"global_step100/zero_pp_rank_1_mp_rank_00_optim_states.pt", kZip},
        {"global_step100/zero_pp_rank_2_mp_rank_00_optim_states.pt", kZip}},
       {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt"}},
      {"Megatron",
       "iter_0000100",
       {{"latest_checkpointed_iteration.txt", "100"},
        {"iter_0000100/mp_rank_00/model_optim_rng.pt", kZip},
        {"iter_0000100/mp_rank_01/model_optim_rng.pt", kZip}},
       {"mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"}},
      {"Hugging Face",
       "checkpoint-100",
       {{"checkpoint-100/trainer_state.json", "{\"global_step\": 100}\n"},
        {"checkpoint-100/model.safetensors.index.json", "{}"},
        {"checkpoint-100/model-00001-of-00002.safetensors", "x"},
        {"checkpoint-100/model-00002-of-00002.safetensors", "x"},
        {"checkpoint-100/optimizer.pt", kZip}},
       {"trainer_state.json", "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors"}},
      {"Lightning",
       "checkpoints/epoch=3-step=100.ckpt",
       {{"checkpoints/epoch=3-step=100.ckpt", kZip}},
       {}},
  };
}

std::string file_of(const Layout& layout, const std::string& needed) {
  return needed[0] == '.' && layout.name == "TensorFlow" ? layout.path + needed
                                                         : layout.path + "/" + needed;
}

}  // namespace

TEST_CASE("foreign layouts are recognised, with their step") {
  for (const Layout& layout : layouts()) {
    CAPTURE(layout.name);
    const ListedForeign found = Tree(layout.files).only();
    CHECK(found.layout == layout.name);
    CHECK(found.path == layout.path);
    CHECK(found.step == 100);
    CHECK(found.missing == "");
  }
}

TEST_CASE("foreign checkpoints that lack a file, or have an empty one, are not complete") {
  for (const Layout& layout : layouts()) {
    for (const std::string& needed : layout.needed) {
      CAPTURE(layout.name);
      CAPTURE(needed);
      Tree tree(layout.files);
      tree.remove(file_of(layout, needed));
      CHECK(tree.only().missing != "");
      tree.put(file_of(layout, needed), "");
      CHECK(tree.only().missing != "");
    }
  }
}

TEST_CASE("foreign archives that are cut off are not complete") {
  for (const Layout& layout : layouts()) {
    for (const auto& [path, text] : layout.files) {
      if (text != kZip) continue;
      CAPTURE(path);
      Tree tree(layout.files);
      tree.put(path, kZip.substr(0, kZip.size() - 1));
      CHECK(tree.only().missing.find("is cut off") != std::string::npos);
    }
  }
  Tree trainer(layouts()[5].files);
  trainer.put("checkpoint-100/trainer_state.json", "{\"global_step\": 1");
  CHECK(trainer.only().missing == "trainer_state.json is cut off");
}

TEST_CASE("foreign checkpoints that were not finished are told by their writers' own marks") {
  Tree orbax(layouts()[1].files);
  orbax.move("100", "100.orbax-checkpoint-tmp-1234");
  CHECK(orbax.only().step == 100);
  CHECK(orbax.only().missing == "it was not renamed to its final name");
  Tree megatron(layouts()[4].files);
  megatron.put("latest_checkpointed_iteration.txt", "99");
  CHECK(megatron.only().missing == "latest_checkpointed_iteration.txt has not come to it");
  Tree deepspeed(layouts()[3].files);
  deepspeed.put("latest", "global_step7");  // decides nothing
  CHECK(deepspeed.only().missing == "");
}

TEST_CASE("k3: the newest is the highest number, whatever its name sorts like") {
  Tree tree({});
  for (const char* name :
       {"step_5", "step_40", "step_1000", "0900000", "1000000", "best", "tmp.step_2000x"}) {
    tree.put(std::string(name) + "/.metadata", "__0_0.distcp");
    tree.put(std::string(name) + "/__0_0.distcp", "x");
  }
  std::vector<std::string> order;
  for (const ListedForeign& one : tree.find()) order.push_back(one.path);
  CHECK(order == std::vector<std::string>{"1000000", "0900000", "step_1000", "step_40", "step_5"});
}

TEST_CASE("what is no checkpoint is none, and our own are not taken for others'") {
  Tree tree({{"step-000000100/rank-0000.safetensors", "x"},
             {"step-000000100/manifest.json", "x"},
             {"step-000000100.tmp-1/rank-0000.safetensors", "x"},
             {"runs/events.out.tfevents.123", "x"},
             {"data-100/part.csv", "x"},
             {"search-100.index", "x"},
             {"job.toml", "x"}});
  CHECK(tree.find().empty());
  REQUIRE(symlink("/", (tree.folder / "checkpoint-5").c_str()) == 0);
  CHECK(tree.find().empty());
}

// Folders without following links: what the agent reads and removes in places that others can
// write to.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace hvd {

// Opens the folder `name` of the open folder `parent` (AT_FDCWD with a path: any folder). A link of
// that name is refused with ENOTDIR or ELOOP in errno; the Fd is then not valid.
Fd open_folder_at(int parent, const std::string& name);

// Names in an open folder, without "." and "..", in no order; at most a million.
Result<std::vector<std::string>> list_folder(int folder);

// True when `name` in the open folder is a regular file itself, not a link to one.
bool is_regular_at(int folder, const std::string& name);

// Removes what `name` in the open folder `parent` is, with all below it, never through a link.
// Nothing there is fine. `errno` text in the error names `name`.
Status remove_tree(int parent, const std::string& name);

}  // namespace hvd

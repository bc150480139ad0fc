// Which variables of the launcher's environment travel to the workers. Pure. The launcher drops the
// others before they leave it, and an agent does again: it believes no launcher.
#pragma once

#include <string_view>

#include "base/message.h"

namespace hvd {

// Whether the variable goes to the workers by itself. What stays: identity and place (HOME, USER,
// TMPDIR, ...), what is bound to this host, login or desktop (SSH_*, DISPLAY, ...), and the
// families that launchers make anew for every rank (RANK, MASTER_*, PMI*, OMPI_*, HOROVOD_*, HVD_*,
// step variables of Slurm, ...). A variable given with -x goes in any case.
bool travels(std::string_view name);

// The value of a variable, the last of several; null if there is none.
const std::string* find_variable(const Variables& variables, std::string_view name);

// The variables that travel, in their order.
Variables forwarded(const Variables& environment);

}  // namespace hvd

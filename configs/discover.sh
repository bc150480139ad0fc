#!/bin/sh
# Prints the hosts that can be used now, one `host:slots` a line, from a file with one such line per
# host and `#` comments: a discovery script in its simplest form. Elastic jobs will run such a
# script again and again (--elastic --host-discovery-script ./discover.sh, not in this version);
# today its output can be used as a host file:
#
#     ./discover.sh > now.hosts && hvdlaunch -H now.hosts -- PROGRAM
#
# Usage: discover.sh [FILE]     (default: discover.hosts beside this script)
set -eu

file=${1:-$(dirname "$0")/discover.hosts}
sed -e 's/[[:space:]]*#.*//' -e '/^[[:space:]]*$/d' "$file"

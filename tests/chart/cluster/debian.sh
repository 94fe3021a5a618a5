#!/bin/bash
# Write a small Debian with given packages as a tar, from the package sources of this machine:
#
#   debian.sh FILE.tar PACKAGE,PACKAGE,...
set -euo pipefail
shopt -s nullglob
sources=(/etc/apt/sources.list.d/debian.sources)
[ -e "${sources[0]}" ] || sources=(/etc/apt/sources.list)
mmdebstrap --quiet --variant=minbase --include="$2" --aptopt='Acquire::Retries "5"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --essential-hook='mkdir -p "$1"/usr/share/man/man1 "$1"/usr/share/man/man7' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/lib/postgresql/*' \
    bookworm "$1" "${sources[@]}"

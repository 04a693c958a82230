#!/bin/sh
# Installs Debian's Chromium for the browser tests if it is missing.
set -e
command -v chromium >/dev/null 2>&1 && exit 0
if [ "$(id -u)" = 0 ]; then run=""; else run="sudo"; fi
$run apt-get update -qq
$run apt-get install -y -qq --no-install-recommends chromium

#!/usr/bin/env bash
# Find a Java 17+ runtime for Spark, or install one with the system's package manager, or say what to install.
set -u

java_major() {
  local command=$1
  "$command" -version 2>&1 | sed -n 's/.*version "\([0-9]*\)\..*/\1/p; s/.*version "\([0-9]*\)".*/\1/p' | head -n 1
}

for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)"; do
  if [ -n "$candidate" ] && [ -x "$candidate" ]; then
    major=$(java_major "$candidate")
    if [ -n "$major" ] && [ "$major" -ge 17 ]; then exit 0; fi
  fi
done

as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root="sudo -n"; else as_root="no"; fi
fi

install() {
  echo "installing a Java 17 runtime for Spark ..."
  "$@" >/tmp/penstock-java-install.log 2>&1
}

if [ "$as_root" != "no" ]; then
  if command -v apt-get >/dev/null; then
    $as_root apt-get update -qq >/dev/null 2>&1
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
      install $as_root apt-get install -y -qq "$package" && break
    done
  elif command -v dnf >/dev/null; then
    install $as_root dnf install -y -q java-17-openjdk-headless || install $as_root dnf install -y -q java-21-openjdk-headless
  elif command -v apk >/dev/null; then
    install $as_root apk add --quiet openjdk17-jre-headless
  elif command -v brew >/dev/null; then
    install brew install openjdk@17
  fi
fi

found=$(command -v java || true)
if [ -n "$found" ]; then
  major=$(java_major "$found")
  if [ -n "$major" ] && [ "$major" -ge 17 ]; then exit 0; fi
fi
echo "Spark needs Java 17 or later and none was found: install a JRE (for instance openjdk-17-jre-headless) or set JAVA_HOME." >&2
exit 1

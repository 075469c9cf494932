#!/bin/sh
# Builds the CPython whose patched source is the working directory, in version $1 of Debian, into /opt/gpuwarden: relocatable,
# with no symbol above glibc 2.34. For Debian 12: of its glibc (2.36) Python uses one symbol above that baseline, hypot.
set -eu

# Every glibc has this version of it.
cat >baseline.h <<'END'
#ifndef __ASSEMBLER__
#if defined(__x86_64__)
__asm__(".symver hypot,hypot@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver hypot,hypot@GLIBC_2.17");
#else
#error "no baseline is known for this architecture"
#endif
#endif
END

# Packages are imported from this tree alone, never from a user's home.
sed -i 's/^ENABLE_USER_SITE = None$/ENABLE_USER_SITE = False/' Lib/site.py
grep -q '^ENABLE_USER_SITE = False$' Lib/site.py

# Modules whose library has another soname on Debian than on RHEL (_bz2), or that nothing here uses.
for module in _bz2 _lzma _uuid _dbm _gdbm readline _curses _curses_panel _tkinter; do
    export "py_cv_module_$module=n/a"
done

quiet() { "$@" >>build.out 2>&1 || { tail -n 40 build.out; exit 1; }; }
quiet ./configure --prefix=/opt/gpuwarden --without-ensurepip --disable-test-modules \
    CFLAGS="-O3 -g0 -fstack-protector-strong -D_FORTIFY_SOURCE=2 -include $PWD/baseline.h" LDFLAGS='-Wl,-z,relro -Wl,-z,now'
# Compiled once, with the packages, by what builds the tree.
sed -i 's/^\t-PYTHONPATH=.*(LIBDEST) .*RUNSHARED. \\$/\t-true \\/' Makefile
quiet make -j "$(nproc)" GITTAG="echo $1"
quiet make install GITTAG="echo $1"

cd /opt/gpuwarden
rm -rf include share lib/pkgconfig lib/libpython*.a bin/idle3* bin/pydoc3* bin/python3*-config
cd lib/python3.13
rm -rf config-3.13-* ensurepip idlelib pydoc_data tkinter turtledemo turtle.py venv
strip --strip-unneeded /opt/gpuwarden/bin/python3.13 lib-dynload/*.so
ln -s python3 /opt/gpuwarden/bin/python
/opt/gpuwarden/bin/python3 -B -c 'import _ctypes, _hashlib, _sqlite3, _ssl, zlib'

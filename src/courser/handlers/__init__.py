"""One async function per command: no bytes, no sockets. The dispatcher finds it."""

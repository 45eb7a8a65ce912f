// Preloaded into servers that take no bind address: whatever they listen on, it is 127.0.0.1.
"use strict";
const net = require("net");

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...args) {
  if (typeof args[0] === "object" && args[0] !== null && args[0].port !== undefined) {
    args[0] = { ...args[0], host: "127.0.0.1" };
  } else if (typeof args[0] === "number" || typeof args[0] === "string") {
    const rest = args.slice(1).filter((arg) => typeof arg !== "string");
    args = [args[0], "127.0.0.1", ...rest];
  }
  return listen.apply(this, args);
};

// The server at a glance.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { bytes, count, duration, shortCount, sizeOf } from "./format.js";
import { figure, heading } from "./widgets.js";

/** @param {import("./views.js").Context} context */
export function show({ root, live, signal, setTitle }) {
  setTitle("Overview");
  const figures = h("dl", { class: "figures" });
  fill(root, heading("Overview"), figures);
  live(async () => {
    const stats = await get("stats", { signal });
    const total = sizeOf(stats.total_disk_space);
    const free = sizeOf(stats.free_disk_space);
    fill(figures,
      figure("Messages", shortCount(stats.messages_count), bytes(sizeOf(stats.messages_size_bytes))),
      figure("Topics", count(stats.topics_count), `${count(stats.partitions_count)} partitions`),
      figure("Connections", count(stats.clients_count)),
      figure("Consumer groups", count(stats.consumer_groups_count)),
      figure("Disk", `${Math.round((100 * (total - free)) / total)} %`, `${bytes(free)} free`),
      figure("Running for", duration(stats.run_time)));
  });
}

// An empty server: how to send the first message, with this server's address filled in. It notices when it arrives.

import { get, urlOf } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { count } from "./format.js";
import { topicHref } from "./views.js";
import { card, heading, snippets } from "./widgets.js";

const INTERVAL = 1_000;

/** @param {import("./views.js").Context} context */
export async function show({ root, live, signal, setTitle, session }) {
  setTitle("Send the first message");
  const { nodes } = await get("cluster/metadata", { signal });
  const { tcp } = nodes[0].endpoints;
  const host = location.hostname;
  const http = urlOf("").href.replace(/\/$/, "");
  const user = session.username;
  const state = h("div", { class: "notice calm", role: "status" }, icon("clock"), h("div", null, "Waiting for the first message …"));
  fill(root, heading("Send the first message"), h("p", { class: "soft" }, "This server has no messages yet. Send one in the way that suits you: this page notices."), state,
    card("A topic and a message", snippets({
      "courser send": [`echo '{"order": 1}' | courser --url iggy://${user}:PASSWORD@${host}:${tcp} send demo/orders --create`].join("\n"),
      curl: [
        `TOKEN=$(curl -s ${http}/users/login -H 'content-type: application/json' \\`,
        `  -d '{"username": "${user}", "password": "PASSWORD"}' | sed 's/.*"token":"\\([^"]*\\)".*/\\1/')`,
        `curl ${http}/streams -H "authorization: Bearer $TOKEN" -H 'content-type: application/json' -d '{"name": "demo"}'`,
        `curl ${http}/streams/demo/topics -H "authorization: Bearer $TOKEN" -H 'content-type: application/json' \\`,
        `  -d '{"name": "orders", "partitions_count": 1, "compression_algorithm": "none", "message_expiry": 0, "max_topic_size": 0}'`,
        `curl ${http}/streams/demo/topics/orders/messages -H "authorization: Bearer $TOKEN" \\`,
        `  -H 'content-type: application/octet-stream' -d '{"order": 1}'`,
      ].join("\n"),
      Python: [
        "import asyncio",
        "import courser",
        "",
        "async def main():",
        `    async with await courser.connect("iggy://${user}:PASSWORD@${host}:${tcp}") as client:`,
        '        await client.create_stream("demo")',
        '        await client.create_topic("demo", "orders", 1)',
        '        await client.send_messages("demo/orders", messages=\'{"order": 1}\')',
        "",
        "asyncio.run(main())",
      ].join("\n"),
      "Iggy SDK": [
        "# pip install apache-iggy",
        "import asyncio",
        "from apache_iggy import IggyClient, SendMessage",
        "",
        "async def main():",
        `    client = IggyClient("${host}:${tcp}")`,
        "    await client.connect()",
        `    await client.login_user("${user}", "PASSWORD")`,
        '    await client.create_stream(name="demo")',
        '    await client.create_topic(stream="demo", name="orders", partitions_count=1)',
        '    await client.send_messages(stream="demo", topic="orders", partitioning=0, messages=[SendMessage(\'{"order": 1}\')])',
        "    await asyncio.sleep(0.1)  # without it, the SDK sometimes aborts at the end",
        "",
        "asyncio.run(main())",
      ].join("\n"),
    }), h("p", { class: "help" }, "Replace PASSWORD. With a saved context, courser send needs no address: courser send demo/orders --create.")));

  live(async () => {
    /** @type {{ stream: string, topic: string, message_count: number }[]} */
    const topics = await get("topics", { signal });
    const found = topics.find((topic) => topic.message_count > 0);
    if (found === undefined) {
      if (topics.length > 0) fill(state, icon("clock"), h("div", null, `${topics[0].stream}/${topics[0].topic} is there. Waiting for its first message …`));
      return;
    }
    state.className = "notice good";
    fill(state, icon("check"), h("div", null, h("strong", null, `${found.stream}/${found.topic} has ${count(found.message_count)} ${found.message_count === 1 ? "message" : "messages"}. `),
      h("a", { href: topicHref(found.stream, found.topic) }, "Look at the topic"), " or go to the ", h("a", { href: "#/?all" }, "overview"), "."));
  }, INTERVAL);
}

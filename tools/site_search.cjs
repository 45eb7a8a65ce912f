// Asks the search of the built site as a browser does: the theme's own worker, with the site's index.
//
//   node tools/site_search.cjs build/site "dead letter" replay
//
// Prints a JSON object: for each query the locations of the articles that are found, best first. Each article is a list
// of its sections, best first.
"use strict"
const fs = require("fs")
const path = require("path")
const vm = require("vm")

const [site, ...queries] = process.argv.slice(2)
const workers = path.join(site, "assets/javascripts/workers")
const script = fs.readdirSync(workers).find(name => /^search\..*\.js$/.test(name))
const { config, docs } = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"))
const [SETUP, QUERY] = [0, 2] // the theme's SearchMessageType

let receive
let resolveAnswer
const world = {
  console, Map, Set, Promise,
  addEventListener: (_, listener) => { receive = listener },
  postMessage: message => resolveAnswer(message),
}
world.self = world
vm.createContext(world)
vm.runInContext(fs.readFileSync(path.join(workers, script), "utf8"), world)

function ask(type, data) {
  return new Promise((resolve, reject) => {
    resolveAnswer = resolve
    receive({ data: { type, data } }).catch(reject)
  })
}

async function main() {
  await ask(SETUP, { config, docs, options: { suggest: false } })
  const found = {}
  for (const query of queries) {
    const { data } = await ask(QUERY, query)
    found[query] = data.items.map(sections => sections.map(section => section.location))
  }
  process.stdout.write(JSON.stringify(found) + "\n")
}

main().catch(error => { console.error(error); process.exit(1) })

import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type HtmlTagDescriptor, type Plugin } from "vite";

/** The api that `npm run dev` asks. */
const api = process.env.CONSOLE_API ?? "http://127.0.0.1:8080";

/** The chunk of the page that most links lead to. */
const EXPLORE = "explore";

/** Lets the browser fetch that page's files together with the shell, which would ask for them only when it runs. */
const preloadExplore: Plugin = {
  name: "preload-explore",
  transformIndexHtml: {
    order: "post",
    handler: (_, { bundle }) =>
      Object.keys(bundle ?? {})
        .filter((name) => name.startsWith(`assets/${EXPLORE}-`))
        .toSorted()
        .map((name): HtmlTagDescriptor => {
          const isStyle = name.endsWith(".css");
          const how = isStyle ? { rel: "preload", as: "style" } : { rel: "modulepreload" };
          return { tag: "link", attrs: { ...how, crossorigin: true, href: `./${name}` }, injectTo: "head" };
        }),
  },
};

export default defineConfig({
  base: "./", // a proxy may serve the api below a path of its own
  plugins: [svelte(), preloadExplore],
  build: {
    outDir: "../services/inference_store/api/console_files",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the policy allows no data: addresses
    modulePreload: { polyfill: false },
    target: "es2022",
    license: { fileName: "licenses.txt" },
    rolldownOptions: {
      output: {
        codeSplitting: {
          // Few files: a browser asks for six at a time, and each costs a request of its own.
          groups: [
            { name: "shell", tags: ["$initial"], priority: 3 },
            { name: EXPLORE, test: /[\\/]pages[\\/]Explore\.svelte/, priority: 2 },
            { name: "shared", test: /[\\/]src[\\/]/, minShareCount: 3, priority: 1 },
          ],
        },
      },
    },
  },
  server: { proxy: { "/v1": api } },
});

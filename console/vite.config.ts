import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

/** The api that `npm run dev` asks. */
const api = process.env.CONSOLE_API ?? "http://127.0.0.1:8080";

export default defineConfig({
  base: "./", // a proxy may serve the api below a path of its own
  plugins: [svelte()],
  build: {
    outDir: "../services/inference_store/api/console_files",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the policy allows no data: addresses
    modulePreload: { polyfill: false },
    target: "es2022",
    license: { fileName: "licenses.txt" },
  },
  server: { proxy: { "/v1": api } },
});

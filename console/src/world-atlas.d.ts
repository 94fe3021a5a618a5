// As TypeScript would read them from half a million numbers.
declare module "world-atlas/countries-110m.json" {
  const world: import("./lib/map.ts").World;
  export default world;
}
declare module "world-atlas/countries-50m.json" {
  const world: import("./lib/map.ts").World;
  export default world;
}

/** The keys that the reader trusts: their own words, held in this tab alone. */

import { findObstacle, NoKey, readTrust, type Trust } from "./keys.ts";

class Trusted {
  text = $state("");
  trust = $state.raw<Trust | null>(null);
  /** Why there is none, as a sentence. */
  problem = $state("");

  async use(text: string): Promise<void> {
    this.text = text;
    this.trust = null;
    this.problem = "";
    if (!text.trim()) return;
    try {
      const obstacle = await findObstacle();
      if (obstacle) throw new NoKey(obstacle);
      const trust = await readTrust(text);
      if (this.text === text) this.trust = trust;
    } catch (fault) {
      if (!(fault instanceof NoKey)) throw fault;
      if (this.text === text) this.problem = fault.message;
    }
  }
}

export const trusted = new Trusted();

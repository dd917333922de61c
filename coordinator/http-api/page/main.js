// Starts the page.

import { App } from "./app.js";

const app = new App();
// For tests and for people who want to know what drawing costs.
window.leasehold = { stats: () => app.stats(), forget: () => app.forgetStats() };
app.start();

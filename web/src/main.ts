import "./gate.js";
import "./help.js";
import "./receipt.js";
import "./sessions.js";
import "./app.js";

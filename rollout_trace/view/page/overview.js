"use strict";
RT.app.route("", { open(params, element) { element.append(RT.dom.el("p", { class: "empty" }, "The overview comes.")); }, close() {} });

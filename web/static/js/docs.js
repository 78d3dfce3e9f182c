// Converts the list of operations at /docs to a reference that can send requests. If this fails, or
// scripts are off, the list is shown.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("interactive"); // hides the list before the first paint

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = () => root.classList.toggle("dark-mode", dark.matches); // the class that Swagger UI uses
  dark.addEventListener("change", colour);
  colour();

  // The operations for reading come first.
  const methods = ["get", "post", "put", "patch", "delete"];
  const order = (a, b) =>
    a.get("path").localeCompare(b.get("path")) || methods.indexOf(a.get("method")) - methods.indexOf(b.get("method"));

  document.addEventListener("DOMContentLoaded", () => {
    if (!window.SwaggerUIBundle) {
      root.classList.remove("interactive");
      return;
    }
    SwaggerUIBundle({
      url: "/openapi.json",
      dom_id: "#reference",
      deepLinking: true,
      docExpansion: "none",
      defaultModelRendering: "model",
      defaultModelsExpandDepth: 0,
      displayRequestDuration: true,
      operationsSorter: order,
      persistAuthorization: false, // the browser does not store the key
      requestSnippetsEnabled: false,
      syntaxHighlight: { activated: true, theme: dark.matches ? "agate" : "idea" },
      tryItOutEnabled: true,
      validatorUrl: null, // the document is not sent to a third party
    });
  });
})();

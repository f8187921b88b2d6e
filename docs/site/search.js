// The search reads a leading "-" as an exclusion. A user who searches for a flag, such as --batch-size, means its name.
(() => {
  const SEARCH_QUERY = 2 // type of the messages of Material for MkDocs to its search worker
  const { postMessage } = window.Worker.prototype
  window.Worker.prototype.postMessage = function (message, ...options) {
    const isQuery = message?.type === SEARCH_QUERY && typeof message.data === "string"
    const query = isQuery ? { ...message, data: message.data.replace(/(^|\s)-+(?=\w|$)/g, "$1") } : message
    return postMessage.call(this, query, ...options)
  }
})()

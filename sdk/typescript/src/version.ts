/** The version of this client. */
export const version = "0.1.0";

DROP TABLE account_links;

DROP TABLE routes;

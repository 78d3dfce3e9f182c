DROP TABLE members;
DROP TABLE people;
